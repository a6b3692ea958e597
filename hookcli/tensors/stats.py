"""Statistics of a tensor, exact and in one pass over memory (design, rule 7).

On the CPU a tensor is read in blocks that stay in cache, each reduced at once to a few float64 numbers, so a float32
tensor costs about what reading it costs and no copy of it is made. Where a block's float32 sums cannot be trusted
(non-finite, overflowing, underflowing, or a mean far above the spread), that block alone is done again in float64.
On an accelerator nothing is read back while the model runs: the same numbers stay on the device, and `resolve`
fetches those of all tensors in one copy.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor

from hookcli.report import TensorStats, raised
from hookcli.tensors import tree
from hookcli.tensors.chunks import blocks, fetched, is_dense, unit_of, unnested
from hookcli.tensors.sums import BLOCK, sums
from hookcli.tensors.weak import WeakIds

DEVICE_BLOCK = 1 << 24
# Above this ratio of squared mean to variance, sum(x^2) - n*mean^2 loses more than 1e-5 of a float32 variance.
_FAR = 16.0
# Squares of values outside of this range leave float32's normal range.
_TINY, _HUGE = 1e-15, 1e15
# Squares of float64 numbers whose exponents are farther from 0, summed over a block, leave its normal range.
_FARTHEST = 450
# Up to which size a Reducer sums a tensor to see whether it changed, and how many elements of a larger one it looks at.
_SMALL, _GLIMPSED = 1 << 16, 251

Moments = tuple[float, float, float, float, float, float, float, float, float]
"""finite count, mean, std, min, max, l2, zeros, nan, inf."""


class Pending:
    """Statistics that were taken and may still live on an accelerator; `resolve` turns them into TensorStats."""

    __slots__ = ("extra", "moments")

    def __init__(self, moments: list[Moments] | Tensor, extra: TensorStats | None = None) -> None:
        self.moments = moments
        self.extra = extra


def measure(tensor: Tensor) -> Pending:
    """Reduce a tensor of any dtype, layout and device, now. Nothing of the tensor is kept and nothing is changed.

    Of a sharded one (a DTensor) the part that this process holds. Complex tensors are measured by their magnitudes,
    quantized ones by the values that they stand for, sparse ones as the dense tensors that they stand for, bool ones as
    0 and 1.
    """
    with torch.no_grad(), torch._C.DisableTorchFunction():
        values, implied = _plain(tensor.detach())
        if values.device.type == "meta":
            return Pending([], TensorStats(numel=values.numel(), l2=math.nan))
        extra = _zeros_stats(implied) if implied else None
        if _on_cpu(values):
            return Pending([_cpu_block(block) for (block,) in blocks((values,), BLOCK)], extra)
        parts = [_device_block(block) for (block,) in blocks((values,), DEVICE_BLOCK)]
        return Pending(torch.stack(parts) if parts else [], extra)


class Reducer:
    """`measure` for a run in which the same tensor comes by several times: unchanged, it is not reduced again.

    In-place operations move a tensor's version. Writing through `.data` or a NumPy view does not, so that a glimpse of
    the values is compared as well.
    """

    def __init__(self) -> None:
        self._seen: WeakIds[Tensor, tuple[object, Pending]] = WeakIds()

    def __call__(self, tensor: Tensor) -> Pending:
        glimpsed = glimpse(tensor)
        if glimpsed is None:
            return measure(tensor)
        state = tensor._version, glimpsed
        before, pending = self._seen.get(tensor) or (None, None)
        if pending is None or before != state:
            pending = measure(tensor)
            self._seen[tensor] = state, pending
        return pending


def glimpse(tensor: Tensor) -> object:
    """What tells of a change in the values, for much less than reducing them: the sum of a small tensor, some elements
    of a large one. None where it would take long, or nothing tells: on an accelerator, of a tensor without version, and
    of a dtype that PyTorch can't sum.
    """
    if tensor.device.type != "cpu" or tensor.is_inference() or not tree.is_plain(tensor):
        return None
    with torch._C.DisableTorchFunction(), suppress(RuntimeError):
        values = tensor.detach()
        if values.numel() <= _SMALL:
            total = values.sum().item()
            return total if cmath.isfinite(total) else None
        if is_dense(values):
            step = values.numel() // _GLIMPSED
            return values.as_strided((_GLIMPSED,), (step,), values.storage_offset()).tolist()
    return None


def resolve(pending: Sequence[Pending]) -> list[TensorStats]:
    """The finished statistics, fetched from each device in one copy."""
    waiting = [(item, item.moments) for item in pending if isinstance(item.moments, Tensor)]
    for (item, _), rows in zip(waiting, fetched([moments for _, moments in waiting]), strict=True):
        item.moments = [cast(Moments, tuple(row)) for row in rows]
    return [_finish(item) for item in pending]


def stats(tensor: Tensor) -> TensorStats:
    """The statistics of one tensor, at once. On an accelerator this waits for it."""
    return resolve([measure(tensor)])[0]


def _on_cpu(values: Tensor) -> bool:
    return values.device.type == "cpu"


def _finish(pending: Pending) -> TensorStats:
    parts = [_from_moments(moments) for moments in pending.moments]
    if pending.extra:
        parts.append(pending.extra)
    return TensorStats.merge(parts) if len(parts) != 1 else parts[0]


def _from_moments(moments: Moments) -> TensorStats:
    n, mean, std, low, high, l2, zeros, nan, inf = moments
    counts = {"numel": int(n + nan + inf), "zeros": int(zeros), "nan": int(nan), "inf": int(inf)}
    if not n:
        return TensorStats(l2=math.nan, **counts)
    return TensorStats(mean=mean, std=std if n > 1 else math.nan, min=low, max=high, l2=l2, **counts)


def _zeros_stats(count: int) -> TensorStats:
    return TensorStats(count, 0.0, 0.0 if count > 1 else math.nan, 0.0, 0.0, 0.0, zeros=count)


def _plain(tensor: Tensor) -> tuple[Tensor, int]:
    """The tensor as strided real numbers, and how many zeros it implies without storing them."""
    if tree.is_sharded(tensor):
        return _plain(cast(Any, tensor).to_local())
    if tensor.is_nested:
        return _plain(unnested(tensor))
    if tensor.layout is not torch.strided:
        sparse = tensor if tensor.layout is torch.sparse_coo else tensor.to_sparse_coo()
        stored = sparse.coalesce().values()
        return _plain(stored)[0], tensor.numel() - stored.numel()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    return _magnitudes(tensor) if tensor.is_complex() else tensor, 0


def _magnitudes(values: Tensor) -> Tensor:
    """The magnitudes of complex values, also of those that their own precision is too narrow for."""
    if values.dtype is torch.complex32:
        values = values.to(torch.complex64)
    sizes = values.abs()
    if values.device.type == "mps" or (_on_cpu(values) and math.isfinite(sizes.sum().item())):
        return sizes
    wide = values.to(torch.complex128)
    sizes = wide.abs()
    finite = torch.isfinite(wide.real) & torch.isfinite(wide.imag)
    return torch.where(finite, sizes.clamp(max=torch.finfo(torch.float64).max), sizes)


def _cpu_block(block: Tensor) -> Moments:
    """Moments of a block on the CPU; the fast way where float32 is good enough, else in float64."""
    if block.dtype in (torch.float16, torch.bfloat16) or block.element_size() == 1:
        block = block.to(torch.float32)
    if block.dtype is not torch.float32:
        return _exact_block(block.to(torch.float64))
    n = block.numel()
    low, high, total, squares, zeros = sums(block)
    peak = max(-low, high)
    if not (math.isfinite(total) and (peak == 0.0 or _TINY < peak < _HUGE)):
        return _exact_block(block.double())
    mean = total / n
    m2 = squares - total * mean
    if total * mean > _FAR * m2:
        return _exact_block(block.double())
    return (n, mean, math.sqrt(max(m2, 0.0) / max(n - 1, 1)), low, high, math.sqrt(squares), zeros, 0, 0)


def _exact_block(block: Tensor) -> Moments:
    """Moments of a float64 block, in two passes, over its finite elements."""
    numel = block.numel()
    nan = inf = 0
    if not math.isfinite(block.sum().item()):
        nan = int(torch.isnan(block).sum().item())
        inf = int(torch.isinf(block).sum().item())
        block = block[torch.isfinite(block)]
    n = numel - nan - inf
    if n == 0:
        return (0, math.nan, math.nan, math.nan, math.nan, math.nan, 0, nan, inf)
    low, high = (value.item() for value in torch.aminmax(block))
    zeros = n - int(torch.count_nonzero(block).item())
    # In units of the largest magnitude where squares would leave float64's range. A power of two changes no bit.
    exponent = math.frexp(max(-low, high))[1]
    if abs(exponent) > _FARTHEST:
        block = raised(block, -exponent)
    else:
        exponent = 0
    least = raised(low, -exponent)
    mean = least + (block - least).mean().item()
    centred = block - mean
    std = math.sqrt(torch.dot(centred, centred).item() / max(n - 1, 1))
    l2 = math.sqrt(torch.dot(block, block).item())
    return (n, raised(mean, exponent), raised(std, exponent), low, high, raised(l2, exponent), zeros, nan, inf)


def _device_block(block: Tensor) -> Tensor:
    """Moments of a block as one float64 tensor on its device, without reading anything back."""
    wide = block.to(torch.float32 if block.device.type == "mps" else torch.float64)
    finite = torch.isfinite(wide)
    n = finite.sum()
    some = torch.where(finite, wide, 0.0)
    unit = unit_of(some) if block.dtype is torch.float64 else 1.0  # of no other dtype squares leave float64's range
    units = some / unit
    mean = units.sum() / n
    centred = torch.where(finite, units - mean, 0.0)
    return torch.stack(
        [
            n,
            mean * unit,
            ((centred * centred).sum() / (n - 1).clamp(min=1)).sqrt() * unit,
            torch.where(finite, wide, math.inf).amin(),
            torch.where(finite, wide, -math.inf).amax(),
            (units * units).sum().sqrt() * unit,
            (wide == 0).sum(),
            torch.isnan(wide).sum(),
            torch.isinf(wide).sum(),
        ]
    )

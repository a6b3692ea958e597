"""Statistics of a tensor, exact and in one pass over memory.

On the CPU a tensor is read in chunks that stay in cache, each reduced at once to a few float64 numbers, so a float32
tensor costs about what reading it costs and no copy of it is made. Where a chunk's float32 sums cannot be trusted
(non-finite, overflowing, underflowing, or a mean far above the spread), that chunk alone is done again in float64.
On an accelerator nothing is read back while the model runs: the same numbers stay on the device, and `resolve`
fetches all tensors' figures in one copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from hookcli.table import STATS_KEYS, TensorStats, raised
from hookcli.tensors import chunks, library, tree
from hookcli.tensors.chunks import HUGE, TINY, PendingFigures, Scratch, dequantized, reduced, resolved, unnested
from hookcli.tensors.devices import launch
from hookcli.tensors.histograms import device_counts, from_device, histogram
from hookcli.tensors.weak import Unchanged

# Above this ratio of squared mean to variance, sum(x^2) - n*mean^2 loses more than 1e-5 of a float32 variance.
_FAR = 16.0
# Squares of float64 numbers whose exponents are farther from 0, summed over a chunk, leave its normal range.
_FARTHEST = 450
_FIGURES = len(STATS_KEYS)
# 1 M float32 elements are 4 MB: small enough for the cache, and measured a little faster than 2 MB or 8 MB.
CHUNK = 1 << 20


class Sums(NamedTuple):
    """The smallest and largest element of a chunk, the sums of its elements and of their squares, and its zeros.

    If an element is NaN or Inf, so is `total`; the other fields then mean nothing.
    """

    low: float
    high: float
    total: float
    squares: float
    zeros: float


Part = TensorStats | tuple[int, Sums] | list[float]
"""A chunk's statistics: finished; a number of elements and their sums by operators; or the figures of the library, or
those fetched from a device.
"""


def measure(tensor: Tensor, *, hist: bool = False) -> PendingFigures:
    """Reduce a tensor of any dtype, layout and device, now. Nothing of the tensor is kept, and nothing is changed.

    `hist`: with a histogram. A sharded tensor (a DTensor) is measured as the part that this process holds, a complex
    one by its magnitudes, a quantized one by the values that it stands for, a sparse one as the dense tensor that it
    stands for, and a bool one as 0 and 1.
    """
    with torch.no_grad(), torch.DisableTorchFunction():
        values, implied = _plain(tensor.detach())
        if values.device.type == "meta":
            return PendingFigures([TensorStats(numel=values.numel())])
        # None without the library, and for a tensor that it can't read.
        measured = library.loaded.statistics(values, hist=hist) if library.loaded and chunks.on_cpu(values) else None
        if measured:
            whole = replace(TensorStats.measured(measured[0]), hist=measured[1]) if hist else measured[0]
            pending = PendingFigures([whole])
        else:
            on_cpu = (lambda x: replace(_finished(_by_operators(x)), hist=histogram(x))) if hist else _by_operators
            pending = reduced((values,), CHUNK, on_cpu, partial(_device_rows, hist=hist))
        if implied:
            pending.parts.append(TensorStats.of_zeros(implied))
        return pending


class Reducer:
    """`measure` for a run in which a tensor, or a view of all of it, appears again: it is reduced again if changed."""

    def __init__(self, *, hist: bool = False) -> None:
        self._measure = partial(measure, hist=hist)
        self._seen: Unchanged[PendingFigures] = Unchanged(views=True)

    def __call__(self, tensor: Tensor) -> PendingFigures:
        return self._seen.get(tensor, self._measure)


def resolve(pending: Sequence[PendingFigures]) -> list[TensorStats]:
    """The finished statistics, fetched from each device in one copy."""
    return resolved(pending, _finished, TensorStats.merge)


def stats(tensor: Tensor) -> TensorStats:
    """The statistics of one tensor, at once. On an accelerator this waits for it."""
    return resolve([measure(tensor)])[0]


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
    tensor = dequantized(tensor)
    if not tensor.is_complex():
        return tensor, 0
    # The magnitudes, also of values whose own precision is too narrow for theirs.
    if tensor.dtype is torch.complex32:
        tensor = tensor.to(torch.complex64)
    sizes = tensor.abs()
    if tensor.device.type == "mps" or (chunks.on_cpu(tensor) and math.isfinite(sizes.sum().item())):
        return sizes, 0
    wide = tensor.to(torch.complex128)
    exact = wide.abs()
    finite = torch.isfinite(wide.real) & torch.isfinite(wide.imag)
    exact = torch.where(finite, exact.clamp(max=torch.finfo(torch.float64).max), exact)
    return torch.where(torch.isfinite(sizes), sizes.to(torch.float64), exact), 0  # as where all of them are finite


def _by_operators(chunk: Tensor) -> Part:
    """Statistics of a chunk on the CPU by operators; in float32 where that is good enough, else in float64."""
    if chunk.dtype in (torch.float16, torch.bfloat16) or chunk.element_size() == 1:
        chunk = chunk.to(torch.float32)
    if chunk.dtype is not torch.float32:
        return _exact_chunk(chunk.to(torch.float64))
    n = chunk.numel()
    sums = _sums(chunk)
    peak = max(-sums.low, sums.high)
    if not (math.isfinite(sums.total) and (peak == 0.0 or TINY < peak < HUGE)):
        return _exact_chunk(chunk.double())
    mean = sums.total / n
    m2 = sums.squares - sums.total * mean
    if sums.total * mean > _FAR * m2:
        return _exact_chunk(chunk.double())
    return n, sums


_scratch = Scratch(CHUNK, count=1)


def _sums(chunk: Tensor) -> Sums:
    """The sums of a one-dimensional float32 chunk on the CPU, of 1 to `CHUNK` elements, with any stride."""
    scratch = _scratch.chunks[0][: chunk.numel()]
    low, high = (value.item() for value in torch.aminmax(chunk))
    # mul then sum, not dot: BLAS adds in a straight line and is off by 1e-4 where values repeat; sum is pairwise.
    squares = torch.mul(chunk, chunk, out=scratch).sum().item()
    zeros = torch.eq(chunk, 0, out=scratch).sum().item() if low <= 0.0 <= high else 0.0
    return Sums(low, high, chunk.sum().item(), squares, zeros)


def _finished(part: Part) -> TensorStats:
    """The statistics of a chunk, computed from its sums only here, after the model ran."""
    if isinstance(part, TensorStats):
        return part
    if isinstance(part, list):
        figures, counts = TensorStats.measured(part[:_FIGURES]), part[_FIGURES:]
        return replace(figures, hist=from_device(counts)) if counts else figures
    n, sums = part
    mean = sums.total / n
    return TensorStats(
        numel=n,
        mean=mean,
        std=math.sqrt(max(sums.squares - sums.total * mean, 0.0) / (n - 1)) if n > 1 else math.nan,
        min=sums.low,
        max=sums.high,
        l2=math.sqrt(sums.squares),
        zeros=int(sums.zeros),
    )


def _device_rows(chunk: Tensor, *, hist: bool) -> Tensor:
    """Statistics of a chunk on its device, by STATS_KEYS: one row by Triton's kernels, else one for each piece.

    `hist`: each row is followed by the counts of its histogram.
    """

    def counted(row: Tensor, piece: Tensor) -> Tensor:
        return torch.cat([row, device_counts(piece)]) if hist else row

    if (row := launch.moments(chunk)) is not None:
        return counted(row, chunk)[None]
    return torch.stack([counted(launch.by_operators(piece), piece) for piece in chunk.split(chunks.DEVICE_CHUNK)])


def _exact_chunk(chunk: Tensor) -> TensorStats:
    """Statistics of a float64 chunk, in two passes over its finite elements."""
    numel = chunk.numel()
    nan = inf = 0
    if not math.isfinite(chunk.sum().item()):
        nan = int(torch.isnan(chunk).sum().item())
        inf = int(torch.isinf(chunk).sum().item())
        chunk = chunk[torch.isfinite(chunk)]
    n = numel - nan - inf
    if n == 0:
        return TensorStats(numel=numel, nan=nan, inf=inf)
    low, high = (value.item() for value in torch.aminmax(chunk))
    zeros = n - int(torch.count_nonzero(chunk).item())
    # In units of the largest magnitude where squares would leave float64's range. A power of two changes no bit.
    exponent = math.frexp(max(-low, high))[1]
    if abs(exponent) > _FARTHEST:
        chunk = raised(chunk, -exponent)
    else:
        exponent = 0
    least = raised(low, -exponent)
    mean = least + (chunk - least).mean().item()
    centred = chunk - mean
    std = math.sqrt(torch.dot(centred, centred).item() / (n - 1)) if n > 1 else math.nan
    l2 = math.sqrt(torch.dot(chunk, chunk).item())
    return TensorStats(
        numel=numel,
        mean=raised(mean, exponent),
        std=raised(std, exponent),
        min=low,
        max=high,
        l2=raised(l2, exponent),
        zeros=zeros,
        nan=nan,
        inf=inf,
    )

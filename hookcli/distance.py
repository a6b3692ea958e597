"""How far a tensor is from another, in one pass over both (design, rule 7).

What is kept adds up: over parts of a tensor, over tensors and over ranks, norms by `math.hypot`, the maximum by `max`.
On the CPU both are read in blocks that stay in cache; on an accelerator nothing is read back before `resolve`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hookcli.stats import CPU_BLOCK, DEVICE_BLOCK, blocks

# Below this mean square, squares of float32 values leave its normal range.
_TINY_SQUARE = 1e-30


@dataclass(frozen=True, slots=True)
class Distance:
    """`exact_l2` is the norm of what should be, `error_l2` and `error_max` the L2 and maximum norm of the difference.

    NaN or infinite where an element of either is.
    """

    exact_l2: float
    error_l2: float
    error_max: float


class PendingDistance:
    """A distance that was taken and may still live on an accelerator."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[tuple[float, float, float]] | Tensor) -> None:
        self.parts = parts


def measure_distance(found: Tensor, exact: Tensor) -> PendingDistance:
    """Compare two dense tensors of the same shape, now; nothing of them is kept. Taken in the dtype of `exact`."""
    with torch.no_grad():
        on_cpu = exact.device.type == "cpu"
        size = CPU_BLOCK if on_cpu else DEVICE_BLOCK
        pairs = zip(*(blocks(_real(t.detach()), size) for t in (found, exact)), strict=True)
        if on_cpu:
            return PendingDistance([_cpu_block(*pair) for pair in pairs])
        parts = [_device_block(*pair) for pair in pairs]
        return PendingDistance(torch.stack(parts) if parts else [])


def resolve_distances(pending: Sequence[PendingDistance]) -> list[Distance]:
    """The finished figures; of those on accelerators all in one copy."""
    waiting = [item for item in pending if isinstance(item.parts, Tensor)]
    if waiting:
        rows = iter(torch.cat([item.parts for item in waiting if isinstance(item.parts, Tensor)]).cpu().tolist())
        for item in waiting:
            item.parts = [tuple(next(rows)) for _ in range(len(item.parts))]
    return [_finish([(float(e), float(d), float(m)) for e, d, m in item.parts]) for item in pending]


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _finish(parts: Sequence[tuple[float, float, float]]) -> Distance:
    squares, differences, peaks = zip(*parts, strict=True) if parts else ((0.0,), (0.0,), (0.0,))
    highest = math.nan if any(map(math.isnan, peaks)) else max(peaks)
    return Distance(math.sqrt(sum(squares)), math.sqrt(sum(differences)), highest)


class _Scratch(threading.local):
    """A block to write into, kept between calls."""

    def __init__(self) -> None:
        self.block = torch.empty(CPU_BLOCK, dtype=torch.float32, device="cpu")


_scratch = _Scratch()


def _cpu_block(found: Tensor, exact: Tensor) -> tuple[float, float, float]:
    """Sum of squares of `exact` and of the difference, and the largest difference."""
    if exact.dtype is not torch.float32:
        return _exact_block(found.double(), exact.double())
    scratch = _scratch.block[: exact.numel()]
    difference = torch.sub(found, exact, out=scratch)
    low, high = (value.item() for value in torch.aminmax(difference))
    peak = max(-low, high)
    squared = torch.mul(difference, difference, out=scratch).sum().item() if peak else 0.0
    squares = torch.mul(exact, exact, out=scratch).sum().item()
    least = exact.numel() * _TINY_SQUARE
    trusted = math.isfinite(squared + squares) and (not peak or squared > least) and squares > least
    return (squares, squared, peak) if trusted else _exact_block(found.double(), exact.double())


def _exact_block(found: Tensor, exact: Tensor) -> tuple[float, float, float]:
    difference = found - exact
    peak = difference.abs().max().item()  # NaN where one is
    return torch.dot(exact, exact).item(), torch.dot(difference, difference).item(), peak


def _device_block(found: Tensor, exact: Tensor) -> Tensor:
    wide = torch.float32 if exact.device.type == "mps" else torch.float64
    exact = exact.to(wide)
    difference = found.to(wide) - exact
    return torch.stack([exact.square().sum(), difference.square().sum(), difference.abs().amax()])

"""How tensors are read for figures: in blocks, without a copy, and what was reduced on accelerators in one fetch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def blocks(tensors: Sequence[Tensor], size: int) -> Iterator[tuple[Tensor, ...]]:
    """The same elements of tensors of one shape as one-dimensional pieces of at most `size`.

    Any dense layout that they share (contiguous, channels_last, transposed) is read in memory order, without a copy:
    figures have no order.
    """
    first = tensors[0]
    if first.numel() == 0:
        return
    if is_dense(first) and all(x.stride() == first.stride() for x in tensors):
        flat = [x.as_strided((x.numel(),), (1,), x.storage_offset()) for x in tensors]
        yield from zip(*(x.split(size) for x in flat), strict=True)
    elif first.numel() <= size:
        yield tuple(x.reshape(-1) for x in tensors)
    else:
        longest = max(range(first.dim()), key=first.size)
        step = max(1, first.size(longest) * size // first.numel())
        for pieces in zip(*(x.split(step, dim=longest) for x in tensors), strict=True):
            yield from blocks(pieces, size)


def unnested(tensor: Tensor) -> Tensor:
    """The elements of a nested tensor, without the holes that a jagged one may have between its parts."""
    values = tensor.values()
    if values.numel() == tensor.numel():
        return values
    return torch.cat([part.reshape(-1) for part in tensor.unbind()])


def unit_of(values: Tensor) -> Tensor:
    """The power of two next to the largest magnitude, on the device: in units of it squares neither overflow nor
    vanish, and the division changes no bit. 1 where all are 0."""
    peak = values.abs().amax()
    unit = (peak / (2 * torch.frexp(peak).mantissa)).clamp(min=torch.finfo(values.dtype).tiny)
    return torch.where(peak > 0, unit, 1.0)


class Scratch(threading.local):
    """Float32 blocks on the CPU to write into, kept by each thread: fresh memory for every block would cost more than
    what is computed there."""

    def __init__(self, size: int, count: int) -> None:
        with torch.inference_mode(False):  # else they could be written to in inference mode alone
            self.blocks = [torch.empty(size, dtype=torch.float32, device="cpu") for _ in range(count)]


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, each place once (PyTorch's non-overlapping and dense)."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, length in sorted((st, ln) for st, ln in zip(tensor.stride(), tensor.shape, strict=True) if ln != 1):
        if stride != expected:
            return False
        expected *= length
    return True


def fetched(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """Each tensor as a list, those of one device in one copy. They have the same sizes but for dimension 0."""
    found: dict[int, list[Any]] = {}
    for device in dict.fromkeys(x.device for x in tensors):
        there = [number for number, x in enumerate(tensors) if x.device == device]
        rows = iter(torch.cat([tensors[number] for number in there]).tolist())
        found |= {number: [next(rows) for _ in range(len(tensors[number]))] for number in there}
    return [found[number] for number in range(len(tensors))]

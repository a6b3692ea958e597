"""Tensors are reduced to figures chunk by chunk, without a copy, and read back from accelerators in one fetch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from hookcli.tensors.torch_private import is_differentiated, is_mapped

T = TypeVar("T")
# On a device: the elements of a copy, or of an operator's temporary. More take more memory, fewer more launches.
DEVICE_CHUNK = 1 << 22
_ALL = 1 << 62
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Squares of values outside of this range, summed over a chunk, leave float32's normal range.
TINY, HUGE = 1e-15, 1e15


@dataclass(slots=True, eq=False)
class PendingFigures:
    """The reduction of a tensor: a part for each of its chunks, or a row for each chunk that is still on an
    accelerator.
    """

    parts: list[Any]
    on_device: Tensor | None = None


def reduced(
    tensors: Sequence[Tensor], size: int, one: Callable[..., object], one_on_device: Callable[..., Tensor]
) -> PendingFigures:
    """Reduce tensors of one shape and device together, now: on the CPU in chunks of at most `size` elements.

    `one_on_device` returns rows of figures. It gets dense tensors whole, others in copies of DEVICE_CHUNK elements.
    """
    if on_cpu(tensors[0]):
        return PendingFigures([one(*chunk) for chunk in chunks(tensors, size)])
    rows = [one_on_device(*(x.contiguous() for x in chunk)) for chunk in chunks(tensors, DEVICE_CHUNK, dense=_ALL)]
    return PendingFigures([], torch.cat(rows) if rows[1:] else next(iter(rows), None))


def on_cpu(tensor: Tensor) -> bool:
    """True if the values can be read at once."""
    return tensor.is_cpu


def resolved(
    pending: Sequence[PendingFigures], finished: Callable[[Any], T], merge: Callable[[Iterable[T]], T]
) -> list[T]:
    """The figures of each tensor, merged from its parts; those on accelerators are fetched, each device's in one copy.

    `finished` makes figures of a part, or of the numbers of a device; finished figures are returned unchanged.
    """
    waiting = {id(item): item.on_device for item in pending if item.on_device is not None}
    arrived = dict(zip(waiting, fetched(list(waiting.values())), strict=True))
    for item in pending:
        parts = item.parts if item.on_device is None else [*item.parts, *arrived[id(item)]]
        item.parts = [finished(part) for part in parts]
        item.on_device = None
    return [item.parts[0] if len(item.parts) == 1 else merge(item.parts) for item in pending]


def chunks(tensors: Sequence[Tensor], size: int, dense: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape in one-dimensional pieces of at most `size` elements, the same elements of each.

    `dense`: another limit for tensors that need no copy. A dense layout that they share (contiguous, channels_last,
    transposed) is read in memory order, without a copy: the order does not matter for figures.
    """
    first = tensors[0]
    if first.numel() == 0:
        return
    if is_gapless(first) and all(x.stride() == first.stride() for x in tensors):
        flat = [x.as_strided((x.numel(),), (1,), x.storage_offset()) for x in tensors]
        yield from zip(*(x.split(dense or size) for x in flat), strict=True)
    elif first.numel() <= size:
        yield tuple(x.reshape(-1) for x in tensors)
    else:
        longest = max(range(first.dim()), key=first.size)
        step = max(1, first.size(longest) * size // first.numel())
        for pieces in zip(*(x.split(step, dim=longest) for x in tensors), strict=True):
            yield from chunks(pieces, size, dense)


def cause(error: Exception, *tensors: Tensor) -> str:
    """The reason why tensors could not be reduced, in a few words."""
    if any(map(is_mapped, tensors)):
        return "inside torch.vmap"
    if any(map(is_differentiated, tensors)):
        return "inside torch.func"
    return "the device is out of memory" if isinstance(error, torch.OutOfMemoryError) else type(error).__name__


def dequantized(x: Tensor) -> Tensor:
    """The values that a quantized tensor of PyTorch, or of a class like torchao's, stands for; others as they are."""
    own = type(x).dequantize is not Tensor.dequantize
    return x.dequantize() if x.is_quantized or own else x


def unnested(tensor: Tensor) -> Tensor:
    """The elements of a nested tensor, without the holes that a jagged one may have between its parts."""
    values = tensor.values()
    if values.numel() == tensor.numel():
        return values
    return torch.cat([part.reshape(-1) for part in tensor.unbind()])


def bits(x: Tensor) -> Tensor:
    """The elements as integers of their width, the parts of complex ones side by side."""
    x = x.resolve_conj().resolve_neg()
    x = torch.view_as_real(x) if x.is_complex() else x
    return x.view(_INTEGERS[x.element_size()])


def flat(x: Tensor) -> Tensor:
    """A contiguous tensor in one dimension, of stride 1; view(-1) may keep another stride of 0 or 1 elements.

    Only with stride 1 does PyTorch view elements as others of another width.
    """
    return x.as_strided((x.numel(),), (1,))


def unit_of(values: Tensor) -> Tensor:
    """The power of two next to the largest magnitude, on the device; 1 if all are 0.

    In this unit squares neither overflow nor vanish, and the division changes no bit.
    """
    peak = values.abs().amax()
    unit = (peak / (2 * torch.frexp(peak).mantissa)).clamp(min=torch.finfo(values.dtype).tiny)
    return torch.where(peak > 0, unit, 1.0)


class Scratch(threading.local):
    """Float32 buffers on the CPU, one set per thread: fresh memory for every chunk would cost more than sums."""

    def __init__(self, size: int, count: int) -> None:
        with torch.inference_mode(False):  # else they could be written to in inference mode alone
            self.chunks = [torch.empty(size, dtype=torch.float32, device="cpu") for _ in range(count)]


def is_gapless(tensor: Tensor) -> bool:
    """True if the elements fill one stretch of memory, each place once (non-overlapping and dense)."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, length in sorted((st, ln) for st, ln in zip(tensor.stride(), tensor.shape, strict=True) if ln != 1):
        if stride != expected:
            return False
        expected *= length
    return True


def fetched(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """Each tensor as a list; tensors of one device and of the same sizes but for dimension 0 are copied at once."""
    accelerator = torch.accelerator.current_accelerator()
    for device in {x.device for x in tensors if accelerator and x.device.type == accelerator.type}:
        torch.accelerator.synchronize(device)  # figures may have been made on other streams than the current one
    lists: dict[int, list[object]] = {}
    for kind in dict.fromkeys((x.device, x.shape[1:]) for x in tensors):
        there = [number for number, x in enumerate(tensors) if (x.device, x.shape[1:]) == kind]
        rows = iter(torch.cat([tensors[number] for number in there]).tolist())
        lists |= {number: [next(rows) for _ in range(len(tensors[number]))] for number in there}
    return [lists[number] for number in range(len(tensors))]

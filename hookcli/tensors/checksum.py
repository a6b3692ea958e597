"""Checksums of tensors' bits: processes that hold the same values find it out without talking to each other.

The bits are read as integers of 32, 16 or 8 bits, by the width of elements, in logical order; each is multiplied by a
pseudo-random integer of its place, and the products are added modulo 2**64 (multilinear hashing: Carter and Wegman,
1979). Two tensors of one shape and dtype that differ, in a way that does not depend on the multipliers, have
the same checksum with a chance of at most 2**-32: a difference is below 2**32, so that at least 32 bits of its product
are random. The order in which a device adds changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from hookcli.tensors import library
from hookcli.tensors.chunks import DEVICE_CHUNK, bits, fetched, flat, on_cpu
from hookcli.tensors.library import is_readable

_ROW = 1 << 15  # elements, which have the same multipliers in each row; rows have multipliers of their own
_SMALL = 1 << 12  # elements; tensors with no more are summed together, as most of a model's are
_FEW = 2  # tensors, which are summed sooner one by one
_STEP, *_MIX = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB  # odd; used as in splitmix64


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """The checksum of each tensor, all in strided memory; those on accelerators are fetched in one copy."""
    return fetched_checksums(begun_checksums(tensors))


def checksum(x: Tensor) -> Tensor:
    """The checksum of a tensor in strided memory, on its device, for `fetched_checksums`. Waits for nothing."""
    return begun_checksums([x])[0]


def begun_checksums(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The checksum of each tensor, on its device, for `fetched_checksums`. Waits for nothing."""
    with torch.no_grad(), torch.DisableTorchFunction():
        laid_out = [x.detach().contiguous().resolve_conj().resolve_neg() for x in tensors]
        loaded = library.loaded
        read = {n: x for n, x in enumerate(laid_out) if loaded and loaded.sums_bits and on_cpu(x) and is_readable(x)}
        sums = dict(zip(read, checksums_of_read([*read.values()]), strict=True))
        for device in {x.device for x in laid_out}:
            there = {n: flat(bits(x)) for n, x in enumerate(laid_out) if x.device == device and n not in read}
            sums |= zip(there, checksums_there(device, [*there.values()]), strict=True)
        return [sums[number] for number in range(len(tensors))]


def checksums_of_read(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The checksum of each of these, which the library reads."""
    if not (tensors and library.loaded):
        return []
    rows = max(-(-x.numel() * x.element_size() // _ROW) for x in tensors)
    of_rows = _multipliers(1 << (rows + 1).bit_length(), 1)
    sums: Sequence[Tensor] = library.loaded.checksums(tensors, _multipliers(_ROW, 0), of_rows).split(1)
    return sums


def checksums_there(device: torch.device, elements: Sequence[Tensor]) -> Sequence[Tensor]:
    """The checksum of each of these integers on a device."""
    elements = [x.view(torch.int32) if x.dtype is torch.int64 else x for x in elements]
    places = _multipliers(_ROW, 0).to(device)
    small = {n: x for n, x in enumerate(elements) if len(x) <= _SMALL and len(elements) > _FEW}
    sums = {n: _checksum(x, places) for n, x in enumerate(elements) if n not in small}
    sums |= zip(small, checksums_of_small([*small.values()], places), strict=True)
    return [sums[n] for n in range(len(elements))]


def fetched_checksums(begun: Sequence[Tensor]) -> list[int]:
    """The checksums that were begun, each a number. Waits for an accelerator."""
    return [number for (number,) in fetched(begun)]


def _checksum(values: Tensor, places: Tensor) -> Tensor:
    # An accelerator, which has no `dot` of integers, takes many rows at a time.
    at_once, whole = 1 if on_cpu(values) else DEVICE_CHUNK // _ROW, len(values) // _ROW * _ROW
    pieces = [*values[:whole].view(-1, _ROW).split(at_once), values[whole:].view(1, -1)]
    rows = [(piece.long() * places[: piece.shape[1]]).sum(1) for piece in pieces if piece.numel()]
    sums = torch.cat([places[:1], *rows])
    return (sums * _multipliers(1 << len(sums).bit_length(), 1)[: len(sums)].to(values.device)).sum().reshape(1)


def checksums_of_small(values: Sequence[Tensor], places: Tensor) -> Sequence[Tensor]:
    """The checksum of each, as `_checksum` has it, by a few operations for all of them: each is one row, or none."""
    if not values:
        return []
    lengths = [len(each) for each in values]
    ends = torch.tensor(lengths, device="cpu").cumsum(0).to(places.device)
    products = torch.cat([each.long() for each in values]) * torch.cat([places[:length] for length in lengths])
    until = torch.cat([torch.zeros_like(places[:1]), products.cumsum(0)])[torch.cat([torch.zeros_like(ends[:1]), ends])]
    of_rows = _multipliers(1 << 2, 1).to(places.device)
    sums: Sequence[Tensor] = (places[0] * of_rows[0] + until.diff() * of_rows[1]).split(1)
    return sums


@cache
def _multipliers(number: int, stream: int) -> Tensor:
    """Odd integers, the same on all machines; no random number is drawn."""
    x = (torch.arange(number, device="cpu") * 2 + 1 + (stream << 40)) * _STEP
    for factor, shift in zip(_MIX, (30, 27), strict=True):
        x = (x ^ (x >> shift)) * factor
    return (x ^ (x >> 31)) | 1

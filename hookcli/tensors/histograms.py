"""Counts of a chunk's elements by sign and power of two, from the bits of their exponents, and in equal bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookcli.table import raised
from hookcli.table.histogram import FORMATS, LINEAR, Histogram
from hookcli.tensors.devices import launch


class _Layout(NamedTuple):
    """The bits of a floating-point number: sign and exponent lie above the `shift` bits of the mantissa."""

    bits: torch.dtype
    shift: int
    exponents: int
    """Number of values of the exponent's field; the first stands for zeros and subnormals, the last for NaN and Inf."""

    @property
    def bias(self) -> int:
        return self.exponents // 2 - 1


_LAYOUTS = {torch.float32: _Layout(torch.int32, 23, 256), torch.float64: _Layout(torch.int64, 52, 2048)}


def histogram(chunk: Tensor) -> Histogram:
    """The histogram of a one-dimensional chunk on the CPU, of any real dtype."""
    powers = _powers(chunk)
    if not powers.negative:
        return powers
    values = chunk.to(torch.float64)
    values = values[torch.isfinite(values) & (values != 0)]
    places = raised(values.abs(), -powers.linear_power).long() + LINEAR * (values > 0)
    counts = torch.bincount(places, minlength=2 * LINEAR).tolist()
    return powers.with_linear(counts[:LINEAR], counts[LINEAR:])


def _powers(chunk: Tensor) -> Histogram:
    """The histogram by powers of two alone."""
    if chunk.dtype is not torch.float32:
        narrow = chunk.dtype.is_floating_point and chunk.dtype.itemsize <= 2  # float32 has all of its values
        chunk = chunk.to(torch.float32 if narrow else torch.float64)
    layout = _LAYOUTS[chunk.dtype]
    fields = _fields(chunk, layout)
    counts = torch.bincount(fields, minlength=2 * layout.exponents).tolist()
    first = layout.bias + _LARGE
    large = any(any(counts[side + first : side + layout.exponents - 1]) for side in (0, layout.exponents))
    normal = _histogram(counts, _overflows(chunk).tolist() if large else _NONE, layout)
    if not counts[0] + counts[layout.exponents]:
        return normal
    tiny = chunk[(fields == 0) | (fields == layout.exponents)].double()  # zeros, and subnormals
    larger = tiny[tiny != 0] * 2.0**_RAISED  # to normal numbers, exactly
    lowered = _powers(larger).scaled(2.0**-_RAISED) if len(larger) else None
    return Histogram.merge([normal, lowered]) if lowered else normal


def device_counts(chunk: Tensor) -> Tensor:
    """The counts of a chunk on its device, as float64 numbers for `from_device`; nothing is read back.

    They are counts by powers of two alone: bins of equal width would need another kernel. Subnormals of float64 count
    as its smallest normal numbers. float32's do so on MPS, which has no float64.
    """
    by_kernel = launch.exponents(chunk)
    if by_kernel is not None:
        return by_kernel
    of_pieces = []
    for piece in chunk.split(_PIECE):  # by PyTorch's operators
        copy = piece.to(launch.wide(piece.device))
        layout = _LAYOUTS[copy.dtype]
        fields = _fields(copy, layout)
        subnormal = (fields % layout.exponents == 0) & (copy != 0)
        fields = torch.where(subnormal, fields + 1, fields).to(torch.int16)
        # bincount would wait for the device, and histc fails there under `torch.use_deterministic_algorithms`.
        ends = torch.arange(2 * layout.exponents + 1, dtype=fields.dtype, device=fields.device)
        counts = torch.searchsorted(fields.sort().values, ends).diff()
        of_pieces.append(torch.cat([counts.to(copy.dtype), _overflows(copy).to(copy.dtype)]))
    return torch.stack(of_pieces).sum(0)


def from_device(numbers: Sequence[float]) -> Histogram:
    """The histogram of `device_counts`, fetched."""
    counts, overflows = numbers[: -len(FORMATS)], numbers[-len(FORMATS) :]
    layout = next(layout for layout in _LAYOUTS.values() if 2 * layout.exponents == len(counts))
    return _histogram([int(n) for n in counts], [int(n) for n in overflows], layout)


_NONE = (0,) * len(FORMATS)
_RAISED = 200
_PIECE = 1 << 22  # elements: sorting takes 8 more bytes for each
_LARGE = 8  # the lowest exponent of a number that overflows one of the formats


def _fields(chunk: Tensor, layout: _Layout) -> Tensor:
    """Sign and exponent of each element as one number; the sign is the higher half."""
    return (chunk.view(layout.bits) >> layout.shift) & (2 * layout.exponents - 1)


def _overflows(chunk: Tensor) -> Tensor:
    """For each format the number of finite elements that are too large for it."""
    sizes = chunk.abs()
    sizes = torch.where(sizes < torch.inf, sizes, 0.0)
    return torch.stack([(sizes > f.most if f.beyond else sizes >= f.most).sum() for f in FORMATS])


def _histogram(counts: Sequence[int], overflows: Sequence[int], layout: _Layout) -> Histogram:
    """The histogram of the counts by field, without zeros, subnormals, NaN and Inf."""
    positive, negative = (counts[side + 1 : side + layout.exponents - 1] for side in (0, layout.exponents))
    low = 1 - layout.bias
    return Histogram.of(dict(enumerate(negative, low)), dict(enumerate(positive, low)), overflows)

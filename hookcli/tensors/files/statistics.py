"""Statistics of tensors in files, with NumPy alone, since importing torch takes seconds and half a GiB of memory.

They are those of `hookcli.tensors.stats`, with histograms: exact, and merged exactly from block to block. Codings of
one or two bytes have few codes, which are counted; the statistics of the counts are those of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hookcli.table import TensorStats, raised
from hookcli.table.histogram import FORMATS, Histogram
from hookcli.tensors.files.codings import CODINGS, Values, table
from hookcli.tensors.files.stored import BLOCK, StoredTensor

Counts = NDArray[np.int64]
Told = Callable[[int], object]
"""Is told how many further bytes were read."""
_FARTHEST = 450  # exponents beyond which squares leave float64's range
_MERGED = 256  # blocks whose statistics wait to be merged


def measured(tensor: StoredTensor, tell: Told = lambda nbytes: None) -> TensorStats:
    """The statistics of a tensor whose values can be read, with its histogram."""
    size = tensor.nbytes / max(tensor.numel, 1)
    if CODINGS[tensor.coding].table:
        of_codes = table(tensor.coding)
        counts = np.zeros(len(of_codes), np.int64)
        for block in tensor.blocks(BLOCK):
            counts += np.bincount(block, minlength=len(of_codes))
            tell(round(block.size * size))
        return _of_numbers(of_codes[counts > 0], counts[counts > 0])
    parts: list[TensorStats] = []
    for values in tensor.values():
        parts.append(_of_numbers(values))
        tell(round(values.size * size))
        if len(parts) == _MERGED:
            parts = [TensorStats.merge(parts)]
    return TensorStats.merge(parts)


def _of_numbers(values: Values, counts: Counts | None = None) -> TensorStats:
    """The statistics of numbers, each of which is there once, or as often as `counts` says; in two passes."""
    numel = values.size if counts is None else int(counts.sum())
    nan = inf = 0
    with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs, or a sum beyond float64
        total = values.sum()
    if not math.isfinite(total):
        is_nan, is_inf = np.isnan(values), np.isinf(values)
        nan, inf = _number(is_nan, counts), _number(is_inf, counts)
        finite = ~(is_nan | is_inf)
        values, counts = values[finite], counts if counts is None else counts[finite]
    n = numel - nan - inf
    if n == 0:
        return TensorStats(numel=numel, nan=nan, inf=inf)
    low, high = float(values.min()), float(values.max())
    # In units of the largest magnitude where squares would leave float64's range. A power of two changes no bit.
    exponent = math.frexp(max(-low, high))[1]
    exponent = exponent if abs(exponent) > _FARTHEST else 0
    units = raised(values, -exponent) if exponent else values
    least = raised(low, -exponent)
    mean = least + float((units - least).sum() if counts is None else np.dot(units - least, counts)) / n
    hist = _histogram(values, counts)
    return TensorStats(
        numel=numel,
        mean=raised(mean, exponent),
        std=raised(math.sqrt(_squares(units - mean, counts) / (n - 1)), exponent) if n > 1 else math.nan,
        min=low,
        max=high,
        l2=raised(math.sqrt(_squares(units, counts)), exponent),
        zeros=n - sum(hist.negative) - sum(hist.positive),
        nan=nan,
        inf=inf,
        hist=hist,
    )


def _number(chosen: NDArray[np.bool_], counts: Counts | None) -> int:
    return int(np.count_nonzero(chosen) if counts is None else counts[chosen].sum())


def _squares(values: Values, counts: Counts | None) -> float:
    return float(np.dot(values, values if counts is None else values * counts))


def _histogram(values: Values, counts: Counts | None) -> Histogram:
    sizes = np.abs(values)
    most = float(sizes.max())
    overflows = [
        _number(sizes > form.most if form.beyond else sizes >= form.most, counts) if most >= form.most else 0
        for form in FORMATS
    ]
    fields = (values.view(np.int64) >> 52) & 4095  # the sign and 11 bits of exponent
    bins = np.bincount(fields, counts, minlength=4096)
    subnormal = (fields & 2047 == 0) & (values != 0)
    negative, positive = (
        {k - 1023: int(side[k]) for k in np.flatnonzero(side).tolist() if k} for side in (bins[2048:], bins[:2048])
    )
    for place in np.flatnonzero(subnormal).tolist():
        side = negative if values[place] < 0 else positive
        power = math.frexp(sizes[place])[1] - 1
        side[power] = side.get(power, 0) + (1 if counts is None else int(counts[place]))
    return Histogram.of(negative, positive, overflows)

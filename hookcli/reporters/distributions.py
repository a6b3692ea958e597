"""Distributions of tensors in words and bins, for pictures of them: with characters or as images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import starmap
from typing import NamedTuple

from hookcli.table import Row, TensorStats, formatting
from hookcli.table.columns.statistics import OF_QUANTILES, OUTSIDE, QUANTILES
from hookcli.table.histogram import Histogram, bound

NEEDS = ("p50", "zeros")
"""Columns of a report that was made with `--hist`."""
_NEAR_ZERO, _MOST_NEAR_ZERO = 16, 0.8  # if more are in this part of the range, next to 0, powers of two show more
_FEWEST = 12  # bins, of tensors with few elements
_ENOUGH = 8  # bins of equal width, even if there are more powers of two
_DRAWN = 24  # histograms in a picture
_LEAST_POWER = -1000  # width of bins, below which floats have too few digits


class Bin(NamedTuple):
    """Number of `elements` from `low` to `high`; both are 0 for zeros."""

    low: float
    high: float
    elements: int

    @property
    def is_zeros(self) -> bool:
        """True for the bin of zeros."""
        return self.low == self.high == 0


def chosen_of(rows: Sequence[Row]) -> tuple[Sequence[Row], str]:
    """At most as many tensors as one picture has room for, in order, and a line that says how they were chosen.

    Tensors with NaN or Inf come first; the others are evenly spaced.
    """
    if len(rows) <= _DRAWN:
        return rows, ""
    bad = [place for place, row in enumerate(rows) if row.get("nan") or row.get("inf")][:_DRAWN]
    rest = [place for place in range(len(rows)) if place not in bad]
    room = _DRAWN - len(bad)
    even = [rest[(len(rest) - 1) * number // max(room - 1, 1)] for number in range(room)]
    first = "those with NaN or Inf, others" if bad else "tensors"
    note = f"{_DRAWN} of {len(rows)} tensors: {first} evenly spaced (a LAYER or --match draws others)"
    return [rows[place] for place in sorted({*bad, *even})], note


def title(row: Row) -> str:
    """Name the tensor: layer, kind, call, shape, and statistics that the bars do not show."""
    parts = [f"{row.fqn or '(model)'}" + (f" ({row['type']})" if row.get("type") else "")]
    parts += [str(row[key]) for key in ("kind", "path") if row.get(key)]
    parts += [f"call {row['call']}"] if row.get("call") else []
    parts += [formatting.shape(row["shape"])] if row.get("shape") is not None else []
    parts += [f"{name} {formatting.number(row[name])}" for name in ("mean", "std")]
    parts += [f"{row[key]:,} {word}" for key, word in (("nan", "NaN"), ("inf", "Inf")) if row.get(key)]
    return " · ".join(parts)


def quantiles(row: Row) -> str:
    """The extremes and quantiles, and shares outside narrower formats."""
    parts = [f"{share:.0%} {formatting.number(row[key])}" for key, share in QUANTILES.items()]
    parts += [f"outside {form.title} {formatting.cell(row, key)}" for key, form in OUTSIDE.items() if row.get(key)]
    return " · ".join([f"min {formatting.number(row['min'])}", *parts, f"max {formatting.number(row['max'])}"])


def absence(row: Row) -> str:
    """Say why a tensor has no bins to draw; "" if it has."""
    stats = row.stats
    if stats is None or not stats.finite:
        return "no finite element"
    if stats.hist is None:
        return "no histogram: run the command with --hist"
    missing = [key for key in OF_QUANTILES if key in row.lacking]
    return f"no histogram: saved without {', '.join(missing)}" if missing else ""


def percent(count: int, numel: int) -> str:
    """A share of a tensor's elements: 12.3%."""
    share = 100 * count / numel
    return f"{share:.1f}%" if share >= 0.1 or not count else "<0.1%"


def fitted(stats: TensorStats, most: int) -> list[Bin]:
    """The bins from the most negative to the most positive, as narrow as so many at most allow.

    They are of equal width, or by powers of two where these show more. Those at the ends reach to the smallest and
    largest element.
    """
    assert stats.hist is not None
    step = 1
    while True:  # all bins between the outermost that hold elements, each over `step` powers of two
        begin, *counted = stats.hist.coarser(step)
        sides: list[Sequence[Bin]] = []
        for counts in counted:
            used = [i for i, count in enumerate(counts) if count]
            places = range(used[0], used[-1] + 1) if used else range(0)
            sides.append([Bin(bound(step * (begin + i)), bound(step * (begin + i + 1)), counts[i]) for i in places])
        below = [Bin(-high, -low, count) for low, high, count in reversed(sides[0])]
        bins = [*below, *([Bin(0.0, 0.0, stats.zeros)] if stats.zeros else []), *sides[1]]
        if len(bins) <= most:
            break
        step *= 2
    linear = _linear_bins(stats, stats.hist, most)
    if linear and len(linear) >= min(len(bins), _ENOUGH):
        return linear
    return [Bin(max(low, stats.min), min(high, stats.max), count) for low, high, count in bins]


def _linear_bins(stats: TensorStats, hist: Histogram, most: int) -> list[Bin]:
    """Bins of equal width, a power of two, so that each cell lies within one; zeros are a bin of their own.

    Outliers are in the first and the last bin. Empty if elements were not counted so, or if most are next to 0.
    """
    if not hist.has_linear or stats.min == stats.max or hist.linear_power < _LEAST_POWER:
        return []
    first, last = (hist.quantile(share, stats.zeros, stats.min, stats.max) for share in (0.01, 0.99))
    beside = (last - first) / 2 or math.inf
    low, high = max(stats.min, first - beside), min(stats.max, last + beside)
    if stats.zeros:
        low, high = min(low, 0.0), max(high, 0.0)
    most = min(most, max(_FEWEST, math.isqrt(4 * stats.finite)))
    power = math.ceil(math.log2(high / 2 - low / 2) + 1 - math.log2(most - 3))
    step = 2.0 ** max(power, hist.linear_power)
    begin, end = math.floor(low / step), math.ceil(high / step)
    counts, near = [0] * (end - begin), 0
    for lower, upper, count in hist.cells(0):
        place = math.floor(lower / step) if lower >= 0 else math.ceil(upper / step) - 1
        counts[min(max(place, begin), end - 1) - begin] += count
        near += count if max(-lower, upper) <= (high / _NEAR_ZERO - low / _NEAR_ZERO) else 0
    if near > _MOST_NEAR_ZERO * sum(counts):
        return []
    edges = [stats.min, *(place * step for place in range(begin + 1, end)), stats.max]
    bins = list(starmap(Bin, zip(edges, edges[1:], counts, strict=False)))
    bins[-begin:-begin] = [Bin(0.0, 0.0, stats.zeros)] if stats.zeros else []
    return bins

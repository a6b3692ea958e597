"""Counts of a tensor's elements by sign and size, which merge exactly; quantiles and narrower formats."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Format(NamedTuple):
    """A narrower floating-point format.

    `least`: its smallest positive number is 2**least, and half of that rounds to 0. `most`: the magnitude from which
    on numbers round to infinity or NaN; with `beyond`, only those beyond it.
    """

    name: str
    title: str
    least: int
    most: float
    beyond: bool = False


FORMATS = (
    Format("float16", "float16", -24, 65520.0),
    Format("bfloat16", "bfloat16", -133, (2 - 2.0**-8) * 2.0**127),
    Format("float8_e4m3", "float8 e4m3", -9, 464.0, beyond=True),
    Format("float8_e5m2", "float8 e5m2", -16, 61440.0),
)


def bound(exponent: int) -> float:
    """The end of a bin: two to this power, or the largest float where that is beyond it."""
    return 2.0**exponent if exponent < sys.float_info.max_exp else sys.float_info.max


_HALVINGS = 6
LINEAR = 1 << _HALVINGS
"""Number of bins of equal width for each sign."""
Cell = tuple[float, float, int]
"""Where a bin begins and ends, and its number of elements."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of finite elements other than 0. Bin i holds magnitudes from 2**(low + i) until below twice that.

    `overflows` counts for each of FORMATS the elements that are too large for it. `linear_negative` and
    `linear_positive` count the same elements in LINEAR bins of equal width, from 0 to the end of the last power of two:
    each power's bins are halves, quarters, ... of it, so that all counts merge exactly. Both are empty where that was
    not counted (on devices other than the CPU, or by an older hookcli); one is, if no element has its sign.
    """

    low: int = 0
    negative: Sequence[int] = ()
    positive: Sequence[int] = ()
    overflows: Sequence[int] = (0,) * len(FORMATS)
    linear_negative: Sequence[int] = ()
    linear_positive: Sequence[int] = ()

    @classmethod
    def of(cls, negative: Mapping[int, int], positive: Mapping[int, int], overflows: Sequence[int]) -> Histogram:
        """The histogram with these counts by exponent."""
        used = [k for counts in (negative, positive) for k, count in counts.items() if count]
        if not used:
            return cls(overflows=tuple(overflows))
        bins = range(min(used), max(used) + 1)
        own, others = (tuple(int(counts.get(k, 0)) for k in bins) for counts in (negative, positive))
        return cls(bins.start, own, others, tuple(map(int, overflows)))

    @classmethod
    def merge(cls, parts: Iterable[Histogram]) -> Histogram:
        """The histogram of the concatenation, exactly."""
        parts = list(parts)
        sides: tuple[dict[int, int], dict[int, int]] = {}, {}
        overflows = [0] * len(FORMATS)
        for part in parts:
            overflows = [a + b for a, b in zip(overflows, part.overflows, strict=True)]
            for counts_by_bin, counts in zip(sides, (part.negative, part.positive), strict=True):
                for k, count in enumerate(counts, part.low):
                    counts_by_bin[k] = counts_by_bin.get(k, 0) + count
        merged = cls.of(*sides, overflows)
        counted = [part for part in parts if part.negative]
        if not all(part.has_linear for part in counted):
            return merged
        linear = zip(*(part.widened(merged.linear_power) for part in counted), strict=True)
        return merged.with_linear(*([sum(bins) for bins in zip(*side, strict=True)] for side in linear))

    @property
    def has_linear(self) -> bool:
        """True if the elements were counted in bins of equal width, too."""
        return bool(self.linear_negative or self.linear_positive)

    def with_linear(self, negative: Sequence[int] = (), positive: Sequence[int] = ()) -> Histogram:
        """The histogram with these counts in bins of equal width."""
        sides = [tuple(counts) if any(counts) else () for counts in (negative, positive)]
        return replace(self, linear_negative=sides[0], linear_positive=sides[1])

    @property
    def linear_power(self) -> int:
        """A bin of equal width is two to this power wide."""
        return self.low + len(self.negative) - _HALVINGS

    def widened(self, power: int) -> Iterator[list[int]]:
        """The counts, negative and positive, in bins of equal width, which is two to this power."""
        joins = 1 << min(power - self.linear_power, _HALVINGS)
        for counts in (self.linear_negative, self.linear_positive):
            joined = [sum(counts[i : i + joins]) for i in range(0, len(counts), joins)]
            yield joined + [0] * (LINEAR - len(joined))

    def scaled(self, factor: float) -> Histogram | None:
        """The histogram of the tensor times a factor; None unless that is a power of two.

        Elements between the largest power of two below a format's limit and the limit itself do not count as overflows.
        """
        mantissa, exponent = math.frexp(factor)
        if mantissa != 0.5:
            return None
        low = self.low + exponent - 1
        sides = [dict(enumerate(counts, low)) for counts in (self.negative, self.positive)]
        above = [math.ceil(math.log2(form.most)) for form in FORMATS]
        overflows = [sum(count for side in sides for k, count in side.items() if k >= limit) for limit in above]
        return Histogram.of(sides[0], sides[1], overflows).with_linear(self.linear_negative, self.linear_positive)

    def coarser(self, powers: int) -> tuple[int, list[int], list[int]]:
        """The counts, negative and positive, of bins over so many powers of two each, and where the first begins.

        Bin i is from ``bound(powers * (begin + i))`` on.
        """
        padded = ([*[0] * (self.low % powers), *counts] for counts in (self.negative, self.positive))
        negative, positive = ([sum(side[i : i + powers]) for i in range(0, len(side), powers)] for side in padded)
        return self.low // powers, negative, positive

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        keys = (*_COUNTS, *_LINEAR) if self.has_linear else _COUNTS
        return {"low": self.low, **{key: list(getattr(self, key)) for key in keys}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Histogram:
        """The inverse of `to_dict`. Raises ValueError for anything else."""
        if not is_histogram(data):
            raise ValueError(f"hist can't be {str(data)[:40]!r}")
        return cls(data["low"], *(tuple(data[key]) for key in (*_COUNTS, *_LINEAR) if key in data))

    def outside(self, form: Format) -> int:
        """Number of elements that the format has no place for: too large, or so small that they become 0."""
        below = max(0, form.least - 1 - self.low)  # bins of less than half of its smallest number
        return self.overflows[FORMATS.index(form)] + sum(self.negative[:below]) + sum(self.positive[:below])

    def cells(self, zeros: int) -> list[Cell]:
        """The narrowest bins that were counted, from the most negative to the most positive; one is of zeros."""
        return [cell for power in self._powers(zeros) for cell in self._parts(*power)]

    def quantile(self, share: float, zeros: int, least: float, most: float) -> float:
        """The value below which this share of the elements lies, to within its cell.

        `zeros`, `least` and `most` are the tensor's number of zeros, and its smallest and largest finite element.
        """
        total = sum(self.negative) + zeros + sum(self.positive)
        left = share * (total - 1)
        for sign, power, elements in self._powers(zeros):
            if left >= elements:
                left -= elements
                continue
            for begin, end, count in self._parts(sign, power, elements):
                if left < count:
                    begin, end = max(begin, least), min(end, most)
                    return begin + (end - begin) * (min(left / (count - 1), 1.0) if count > 1 else 0.5)
                left -= count
        return most if total else math.nan

    def _powers(self, zeros: int) -> list[tuple[int, int, int]]:
        """Sign, power of two and count of each bin, from the most negative to the most positive."""
        below, above = ([*enumerate(counts, self.low)] for counts in (self.negative, self.positive))
        return [*((-1, *one) for one in reversed(below)), (0, 0, zeros), *((1, *one) for one in above)]

    def _parts(self, sign: int, power: int, count: int) -> list[Cell]:
        """The cells of a power of two."""
        if not sign:
            return [(0.0, 0.0, count)]
        linear = self.linear_negative if sign < 0 else self.linear_positive
        first = 1 << max(power - self.linear_power, 0) if linear else 1
        counts = linear[first : 2 * first] if first > 1 else [count]
        ends = [math.ldexp(1 + i / first, power) for i in range(first)]
        cells = list(zip(ends, [*ends[1:], bound(power + 1)], counts, strict=True))
        return cells if sign > 0 else [(-end, -begin, count) for begin, end, count in reversed(cells)]


def is_histogram(value: Any) -> bool:
    """True for the JSON object of a histogram."""
    if not isinstance(value, Mapping) or type(value.get("low")) is not int or abs(value["low"]) > _FARTHEST:
        return False
    sides: list[Any] = [value.get(key) for key in _COUNTS]
    linear = [value[key] for key in _LINEAR if key in value]
    if not all(map(_are_counts, sides + linear)):
        return False
    negative, positive, overflows = sides
    if not len(negative) == len(positive) <= _FARTHEST or len(overflows) != len(FORMATS):
        return False
    if not any(linear):
        return True
    pairs = list(zip(linear, (negative, positive), strict=False))
    whole = len(pairs) == 2 and all(len(bins) in (0, LINEAR) and sum(bins) == sum(side) for bins, side in pairs)
    return whole and any(negative[-1:] + positive[-1:])


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


_COUNTS, _LINEAR = ("negative", "positive", "overflows"), ("linear_negative", "linear_positive")
_FARTHEST = 4096  # exponents of float64 lie within

"""Counts of a tensor's elements by sign and power of two, which merge exactly; quantiles and narrower formats."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of finite elements other than 0. Bin i holds magnitudes from 2**(low + i) until below twice that.

    `overflows` counts for each of FORMATS the elements that are too large for it.
    """

    low: int = 0
    negative: Sequence[int] = ()
    positive: Sequence[int] = ()
    overflows: Sequence[int] = (0,) * len(FORMATS)

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
        sides: tuple[dict[int, int], dict[int, int]] = {}, {}
        overflows = [0] * len(FORMATS)
        for part in parts:
            overflows = [a + b for a, b in zip(overflows, part.overflows, strict=True)]
            for found, counts in zip(sides, (part.negative, part.positive), strict=True):
                for k, count in enumerate(counts, part.low):
                    found[k] = found.get(k, 0) + count
        return cls.of(*sides, overflows)

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
        return Histogram.of(sides[0], sides[1], overflows)

    def coarser(self, powers: int) -> tuple[int, list[int], list[int]]:
        """The counts, negative and positive, of bins over so many powers of two each, and where the first begins.

        Bin i is from ``bound(powers * (begin + i))`` on.
        """
        padded = ([*[0] * (self.low % powers), *counts] for counts in (self.negative, self.positive))
        negative, positive = ([sum(side[i : i + powers]) for i in range(0, len(side), powers)] for side in padded)
        return self.low // powers, negative, positive

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        lists = {key: list(getattr(self, key)) for key in ("negative", "positive", "overflows")}
        return {"low": self.low, **lists}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Histogram:
        """The inverse of `to_dict`. Raises ValueError for anything else."""
        if not is_histogram(data):
            raise ValueError(f"hist can't be {str(data)[:40]!r}")
        return cls(data["low"], *(tuple(data[key]) for key in ("negative", "positive", "overflows")))

    def outside(self, form: Format) -> int:
        """Number of elements that the format has no place for: too large, or so small that they become 0."""
        below = max(0, form.least - 1 - self.low)  # bins of less than half of its smallest number
        return self.overflows[FORMATS.index(form)] + sum(self.negative[:below]) + sum(self.positive[:below])

    def quantile(self, share: float, zeros: int, least: float, most: float) -> float:
        """The value below which this share of the elements lies, to within its bin: between two powers of two.

        `zeros`, `least` and `most` are the tensor's number of zeros, and its smallest and largest finite element.
        """
        total = sum(self.negative) + zeros + sum(self.positive)
        left = share * (total - 1)
        bins = [(-bound(k + 1), -bound(k), n) for k, n in [*enumerate(self.negative, self.low)][::-1]]
        bins += [(0.0, 0.0, zeros), *((bound(k), bound(k + 1), n) for k, n in enumerate(self.positive, self.low))]
        for begin, end, count in bins:
            if count and left < count:
                begin, end = max(begin, least), min(end, most)
                return begin + (end - begin) * (min(left / (count - 1), 1.0) if count > 1 else 0.5)
            left -= count
        return most if total else math.nan


def is_histogram(value: Any) -> bool:
    """True for the JSON object of a histogram."""
    if not isinstance(value, Mapping) or type(value.get("low")) is not int or abs(value["low"]) > _FARTHEST:
        return False
    lists = [value.get(key) for key in ("negative", "positive", "overflows")]
    if not all(isinstance(counts, list) and all(type(n) is int and n >= 0 for n in counts) for counts in lists):
        return False
    negative, positive, overflows = lists
    return len(negative) == len(positive) <= _FARTHEST and len(overflows) == len(FORMATS)  # type: ignore[arg-type]


_FARTHEST = 4096  # exponents of float64 lie within

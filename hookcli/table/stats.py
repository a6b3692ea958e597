"""`TensorStats`: the statistics of a tensor, which `columns.statistics` declares; and norms over many parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from hookcli.table.column import Kind, Merge
from hookcli.table.columns import names
from hookcli.table.columns.statistics import HIST_COLUMNS, OUTSIDE, QUANTILES, QUARTILES, STATS_COLUMNS
from hookcli.table.histogram import Histogram

_LEAST_FILL = 1e4  # smaller ones may be anything
_REST = 0.01  # of the fill: the rest is smaller
_LIMITS = (65504.0, 3.3895313892515355e38, 3.4028234663852886e38, 1.7976931348623157e308)  # of float16 to float64
_ROUNDED = 0.005  # bfloat16 has 8 bits


def norm(parts: Iterable[float]) -> float:
    """The L2 norm of the concatenation of tensors with these norms; NaN if one of them is NaN, even if another is
    infinite.
    """
    parts = list(parts)
    return math.nan if any(map(math.isnan, parts)) else math.hypot(*parts)


def total(values: Iterable[float]) -> float:
    """The exact sum; NaN of opposite infinities, infinite beyond the largest float."""
    values = list(values)
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):  # fsum raises on these
        return sum(values)


def ratio(update: float | None, weight: float | None) -> float | None:
    """|dw|/|w|: infinite if weights of 0 changed, NaN if they did not."""
    if update is None or weight is None:
        return None
    if weight == 0:
        return math.nan if update == 0 or math.isnan(update) else math.inf
    return update / weight


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Statistics of one tensor, or exactly merged statistics of several.

    `zeros`, `nan` and `inf` are counts among the `numel` elements. `mean`, `std`, `min`, `max` and `l2` are over
    the finite elements, `std` with Bessel's correction as `torch.Tensor.std` has it. Without a finite element (in an
    empty tensor, or one that is all NaN) all five are NaN; `std` also with one alone. `hist` is None unless asked for.
    """

    numel: int = 0
    mean: float = math.nan
    std: float = math.nan
    min: float = math.nan
    max: float = math.nan
    l2: float = math.nan
    zeros: int = field(default=0, kw_only=True)
    nan: int = field(default=0, kw_only=True)
    inf: int = field(default=0, kw_only=True)
    hist: Histogram | None = field(default=None, kw_only=True)

    @property
    def finite(self) -> int:
        """Number of elements that are neither NaN nor infinite."""
        return self.numel - self.nan - self.inf

    @property
    def masks(self) -> bool:
        """True for zeros and infinities alone, as in a mask that is added to attention scores."""
        return bool(not self.nan and self.inf and self.zeros and self.zeros == self.finite)

    @property
    def filled(self) -> bool:
        """True if all that is large is one number that programs write into masked places: -1e9, or a dtype's lowest.

        Such a number stands in some share of the elements, and the rest is near zero beside it: mean and std are then
        those of two values.
        """
        n, fill = self.finite, min(self.min, self.max, key=lambda x: -abs(x))
        size = abs(fill)
        if n < 2 or not _LEAST_FILL <= size < math.inf:
            return False
        # A number such as 1e9, 5e4 or 65000, or the limit of a dtype, or half of it.
        digits = 2 * (size / 10.0 ** math.floor(math.log10(size) + _ROUNDED))
        limits = [limit / part for limit in _LIMITS for part in (1, 2)]
        near = math.isclose(digits, round(digits), rel_tol=_ROUNDED)
        if not near and not any(math.isclose(size, limit, rel_tol=_ROUNDED) for limit in limits):
            return False
        share = self.mean / fill
        std = size * math.sqrt(max(share * (1 - share), 0.0) * n / (n - 1))
        return share * n > 1 - _REST and self.std > 0 and math.isclose(self.std, std, rel_tol=_REST)

    @property
    def rms(self) -> float:
        """Root mean square of the finite elements; 0 without any. If `l2` is unknown, by what is known of mean and std.

        NaN if neither is known.
        """
        n = self.finite
        if not n or not math.isnan(self.l2):
            return self.l2 / math.sqrt(n) if n else 0.0
        moments = [x for x in (self.mean, self.std * math.sqrt((n - 1) / n)) if not math.isnan(x)]
        return math.hypot(*moments) if moments else math.nan

    def of_histogram(self, key: str) -> float | None:
        """A quantile, or the number of elements outside of a format; None without `hist`."""
        if self.hist is None or not self.finite:
            return None
        if share := QUANTILES.get(key) or QUARTILES.get(key):
            return self.hist.quantile(share, self.zeros, self.min, self.max)
        return self.hist.outside(OUTSIDE[key])

    def named(self, prefix: str = "") -> dict[str, float]:
        """The statistics by name, for a row; `prefix` tells two sets in one row apart ("before_mean")."""
        return {prefix + key: getattr(self, key) for key in STATS_KEYS}

    @classmethod
    def of(cls, values: Mapping[str, Any], prefix: str = "") -> TensorStats:
        """The inverse of `named`."""
        return cls(**{key: values[prefix + key] for key in STATS_KEYS})

    def floats(self) -> tuple[float, ...]:
        """The statistics as numbers in the order of `STATS_KEYS`, for an array of float64."""
        numbers: tuple[float, ...] = _in_order(self)
        return numbers

    @classmethod
    def from_floats(cls, floats: Iterable[float]) -> TensorStats:
        """The inverse of `floats`."""
        values: Any = {key: kind(number) for (key, kind), number in zip(_KINDS, floats, strict=True)}
        return cls(**values)

    @classmethod
    def measured(cls, floats: Iterable[float]) -> TensorStats:
        """Statistics from `floats` that were reduced without a look at whether each is defined."""
        stats = cls.from_floats(floats)
        if stats.finite > 1:
            return stats
        undefined: dict[str, Any] = dict.fromkeys(("std",) if stats.finite else FIGURES, math.nan)
        return replace(stats, **undefined)

    @classmethod
    def of_zeros(cls, numel: int) -> TensorStats:
        """The statistics of `numel` zeros, one or more."""
        return cls.measured({**dict.fromkeys(STATS_KEYS, 0), "numel": numel, "zeros": numel}.values())

    def scaled(self, factor: float) -> TensorStats:
        """The statistics of the tensor times a positive factor."""
        figures: dict[str, Any] = {key: factor * getattr(self, key) for key in FIGURES}
        return replace(self, **figures, hist=self.hist.scaled(factor) if self.hist else None)

    @classmethod
    def merge(cls, parts: Iterable[TensorStats]) -> TensorStats:
        """The statistics of the concatenation of the parts, exactly (never an average of averages)."""
        parts = list(parts)
        solid = [part for part in parts if part.finite]
        columns = _columns(parts)
        counts = {key: sum(columns[key]) for key in COUNTS}
        if solid:
            columns = columns if len(solid) == len(parts) else _columns(solid)
            mean, std = _spread(columns, [part.finite for part in solid])
            figures: dict[str, Any] = {key: _MERGE[rule](columns[key]) for key, rule in RULES.items()}
            return cls(mean=mean, std=std, **figures, **counts, hist=_merged_histograms(parts))
        return cls(**counts, hist=_merged_histograms(parts))


def _merged_histograms(parts: Sequence[TensorStats]) -> Histogram | None:
    """The histogram of all parts; None if one of them has none and needs one."""
    histograms = [part.hist for part in parts if part.hist is not None or part.finite > part.zeros]
    return Histogram.merge(filter(None, histograms)) if any(histograms) and None not in histograms else None


STATS_KEYS = names(STATS_COLUMNS)
COUNTS = tuple(column.name for column in STATS_COLUMNS if column.merge == Merge.SUM)
FIGURES = tuple(column.name for column in STATS_COLUMNS if column.kind == Kind.FIGURE)
EXACT = tuple(column.name for column in STATS_COLUMNS if column.kind in (Kind.COUNT, Kind.FAULTS))
"""Statistics that are the same in equal tensors, whatever rounding does; no tolerance applies to them."""
HIST_KEYS = names(HIST_COLUMNS)
_KINDS = tuple((key, int if key in COUNTS else float) for key in STATS_KEYS)
RULES = {c.name: c.merge for c in STATS_COLUMNS if c.merge in (Merge.LEAST, Merge.MOST, Merge.NORM)}
_MERGE: Mapping[Merge, Callable[[Sequence[float]], float]] = {
    Merge.LEAST: min,
    Merge.MOST: max,
    Merge.NORM: lambda norms: math.hypot(*norms),
}
_in_order = attrgetter(*STATS_KEYS)


def _columns(parts: Sequence[TensorStats]) -> dict[str, Sequence[Any]]:
    """The values of all parts by the name of the statistic."""
    values = zip(*map(_in_order, parts), strict=True) if parts else [()] * len(STATS_KEYS)
    return dict(zip(STATS_KEYS, values, strict=True))


def _spread(columns: Mapping[str, Sequence[float]], sizes: Sequence[int]) -> tuple[float, float]:
    """Mean and standard deviation of parts that have these numbers of finite elements, one or more each.

    Chan, Golub and LeVeque (1983), "Algorithms for computing the sample variance". Computed in units of the power of
    two next to the largest magnitude, which is exact, and so that squares neither overflow nor vanish (as BLAS `nrm2`
    does).
    """
    n = sum(sizes)
    exponent = math.frexp(max(-min(columns["min"]), max(columns["max"])))[1]
    means = [math.ldexp(mean, -exponent) for mean in columns["mean"]]
    # The mean is summed about the first part's, so that nothing cancels where it is far above the spread.
    mean = means[0] + math.fsum([(m - means[0]) * size for m, size in zip(means, sizes, strict=True)]) / n
    stds = zip(columns["std"], sizes, strict=True)
    squares = [math.ldexp(std, -exponent) ** 2 * (size - 1) for std, size in stds if size > 1]
    squares += [size * (m - mean) ** 2 for m, size in zip(means, sizes, strict=True)]
    std = math.sqrt(math.fsum(squares) / (n - 1)) if n > 1 else math.nan
    return raised(mean, exponent), raised(std, exponent)


def raised(x: Any, exponent: int) -> Any:
    """A number (or tensor) times two to the power of an integer; infinite where `math.ldexp` raises OverflowError."""
    half = exponent // 2
    return x * 2.0**half * 2.0 ** (exponent - half)


def agree(a: float, b: float, rel_tol: float, abs_tol: float = 0.0) -> bool:
    """True if two figures are equal within the tolerances of `math.isclose`; NaN agrees with NaN."""
    return math.isclose(a, b, rel_tol=rel_tol, abs_tol=abs_tol) or (math.isnan(a) and math.isnan(b))


def figures_of(stats: TensorStats) -> tuple[float | None, ...]:
    """The figures of a tensor, equal where it has not changed: None for those that are NaN, as the std of one value."""
    return tuple(None if math.isnan(figure) else figure for figure in stats.floats())


_MANTISSA = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}  # bits


def spacing(dtype: str, size: float) -> float:
    """The distance between two numbers of a dtype near one of this size; 0 if that is unknown."""
    bits = _MANTISSA.get(dtype)
    if bits is None or not 0 < size < math.inf:
        return 0.0
    return 2.0 ** (math.floor(math.log2(size)) - bits)

"""`TensorStats`: the statistics of a tensor, each declared once with its title, its unit and how it merges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any


def _count(title: str) -> Any:
    """A count of elements: an integer; counts of parts are added up."""
    return field(default=0, metadata={"title": title, "unit": "elements"})


def _figure(title: str, default: float = math.nan, merge: Callable[[Sequence[float]], float] | None = None) -> Any:
    """A float over the finite elements, in the unit of the elements; `merge` makes one of those of several parts."""
    return field(default=default, metadata={"title": title, "merge": merge})


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Statistics of one tensor, or exactly merged statistics of several.

    `zeros`, `nan` and `inf` are counts among the `numel` elements. `mean`, `std`, `min`, `max` and `l2` are over
    the finite elements, `std` with Bessel's correction as `torch.Tensor.std` has it; each is NaN where it is not
    defined (no finite element; for `std`, fewer than two). `l2` of a tensor without elements is 0.
    """

    numel: int = _count("Elements")
    mean: float = _figure("Mean")  # merged together with std
    std: float = _figure("Std")
    min: float = _figure("Min", merge=min)
    max: float = _figure("Max", merge=max)
    l2: float = _figure("L2", 0.0, merge=lambda norms: math.hypot(*norms))
    zeros: int = _count("Zeros")
    nan: int = _count("NaN")
    inf: int = _count("Inf")

    @property
    def finite(self) -> int:
        """Number of elements that are neither NaN nor infinite."""
        return self.numel - self.nan - self.inf

    @property
    def rms(self) -> float:
        """Root mean square of the finite elements; 0 without any."""
        return self.l2 / math.sqrt(self.finite) if self.finite else 0.0

    def named(self, prefix: str = "") -> dict[str, float]:
        """The statistics by name, for a row; `prefix` tells two sets in one row apart ("before_mean")."""
        return {prefix + key: getattr(self, key) for key in STATS_KEYS}

    @classmethod
    def of(cls, values: Mapping[str, Any], prefix: str = "") -> TensorStats:
        """The inverse of `named`."""
        return cls(**{key: values[prefix + key] for key in STATS_KEYS})

    def floats(self) -> tuple[float, ...]:
        """The statistics as numbers in the order of `STATS_KEYS`, for an array of float64."""
        found: tuple[float, ...] = _in_order(self)
        return found

    @classmethod
    def from_floats(cls, floats: Iterable[float]) -> TensorStats:
        """The inverse of `floats`."""
        values: Any = (kind(number) for kind, number in zip(_KINDS, floats, strict=True))
        return cls(*values)

    @classmethod
    def measured(cls, floats: Iterable[float]) -> TensorStats:
        """Statistics from `floats` that were reduced without a look at whether each is defined."""
        found = cls.from_floats(floats)
        if found.finite > 1:
            return found
        undefined: dict[str, Any] = dict.fromkeys(("std",) if found.finite else FIGURES, math.nan)
        return replace(found, **undefined)

    @classmethod
    def of_zeros(cls, numel: int) -> TensorStats:
        """The statistics of `numel` zeros, one or more."""
        return cls.measured({**dict.fromkeys(STATS_KEYS, 0), "numel": numel, "zeros": numel}.values())

    def scaled(self, factor: float) -> TensorStats:
        """The statistics of the tensor times a positive factor."""
        return replace(self, **{key: factor * getattr(self, key) for key in FIGURES})

    @classmethod
    def merge(cls, parts: Iterable[TensorStats]) -> TensorStats:
        """The statistics of the concatenation of the parts, exactly (never an average of averages)."""
        parts = list(parts)
        counts = {key: sum([getattr(part, key) for part in parts]) for key in COUNTS}
        solid = [part for part in parts if part.finite]
        if solid:
            mean, std = _spread(solid)
            figures = {key: rule([getattr(part, key) for part in solid]) for key, rule in _RULES.items()}
            return cls(mean=mean, std=std, **figures, **counts)
        undefined: dict[str, Any] = dict.fromkeys(FIGURES, math.nan) if counts["numel"] else {}
        return cls(**counts, **undefined)


_FIELDS = fields(TensorStats)
STATS_KEYS = tuple(f.name for f in _FIELDS)
COUNTS = tuple(f.name for f in _FIELDS if "unit" in f.metadata)
FIGURES = tuple(f.name for f in _FIELDS if "unit" not in f.metadata)
TITLES = tuple((f.name, f.metadata["title"], f.metadata.get("unit")) for f in _FIELDS)
_KINDS = tuple(int if key in COUNTS else float for key in STATS_KEYS)
_RULES = {f.name: f.metadata["merge"] for f in _FIELDS if f.metadata.get("merge")}
_in_order = attrgetter(*STATS_KEYS)


def _spread(parts: Sequence[TensorStats]) -> tuple[float, float]:
    """Mean and standard deviation of the parts' finite elements together.

    Chan, Golub and LeVeque (1983), "Algorithms for computing the sample variance". Computed in units of the power of
    two next to the largest magnitude, which is exact, and so that squares neither overflow nor vanish (as BLAS `nrm2`
    does).
    """
    n = sum(part.finite for part in parts)
    exponent = math.frexp(max(max(abs(p.min), abs(p.max)) for p in parts))[1]
    means = [math.ldexp(p.mean, -exponent) for p in parts]
    # The mean is summed about the first part's, so that nothing cancels where it is far above the spread.
    mean = means[0] + math.fsum((m - means[0]) * p.finite for m, p in zip(means, parts, strict=True)) / n
    within = (math.ldexp(p.std, -exponent) ** 2 * (p.finite - 1) for p in parts if p.finite > 1)
    between = (p.finite * (m - mean) ** 2 for m, p in zip(means, parts, strict=True))
    std = math.sqrt(math.fsum((*within, *between)) / (n - 1)) if n > 1 else math.nan
    return raised(mean, exponent), raised(std, exponent)


def raised(x: Any, exponent: int) -> Any:
    """A number (or tensor) times two to the power of an integer; infinite where `math.ldexp` raises OverflowError."""
    half = exponent // 2
    return x * 2.0**half * 2.0 ** (exponent - half)

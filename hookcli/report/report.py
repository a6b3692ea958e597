"""What a run leaves behind: plain numbers, no tensors, no torch; frozen, and to and from strict JSON.

A `Report` is all that reporters, checks and diffs ever see, so each of them works on a saved file as on a
fresh run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from types import NoneType
from typing import Any

SCHEMA = 1
SEVERITIES = ("error", "warning")  # of findings that can make a check fail, the worst first
INFO = "info"  # of those that never do
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Statistics of one tensor, or exactly merged ones of several.

    `zeros`, `nan` and `inf` are counts among the `numel` elements. `mean`, `std`, `min`, `max` and `l2` are over
    the finite elements, `std` with Bessel's correction as `torch.Tensor.std` has it; each is NaN where it is not
    defined (no finite element; for `std`, fewer than two). `l2` of a tensor without elements is 0.
    """

    numel: int = 0
    mean: float = math.nan
    std: float = math.nan
    min: float = math.nan
    max: float = math.nan
    l2: float = 0.0
    zeros: int = 0
    nan: int = 0
    inf: int = 0

    @property
    def finite(self) -> int:
        return self.numel - self.nan - self.inf

    def scaled(self, factor: float) -> TensorStats:
        """The statistics of the tensor times a positive factor."""
        mean, std, low, high, l2 = (factor * x for x in (self.mean, self.std, self.min, self.max, self.l2))
        return replace(self, mean=mean, std=std, min=low, max=high, l2=l2)

    @classmethod
    def merge(cls, parts: Iterable[TensorStats]) -> TensorStats:
        """The statistics of the concatenation of the parts, exactly (never an average of averages).

        Chan, Golub and LeVeque (1983), "Algorithms for computing the sample variance", for mean and `m2`.
        """
        parts = list(parts)
        solid = [part for part in parts if part.finite]
        n = sum(part.finite for part in solid)
        mean, std = _spread(solid, n)
        return cls(
            numel=sum(p.numel for p in parts),
            mean=mean,
            std=std,
            min=min((p.min for p in solid), default=math.nan),
            max=max((p.max for p in solid), default=math.nan),
            l2=math.hypot(*(p.l2 for p in solid)) if solid or not any(p.numel for p in parts) else math.nan,
            zeros=sum(p.zeros for p in parts),
            nan=sum(p.nan for p in parts),
            inf=sum(p.inf for p in parts),
        )


def _spread(parts: Sequence[TensorStats], n: int) -> tuple[float, float]:
    """Mean and standard deviation of the parts' `n` finite elements together.

    Computed in units of the power of two next to the largest magnitude, which is exact, and so that squares neither
    overflow nor vanish (as BLAS `nrm2` does).
    """
    if not n:
        return math.nan, math.nan
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


STATS_KEYS = tuple(f.name for f in fields(TensorStats))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `name` is the key in each row, `title` the heading for people, `unit` what a number counts."""

    name: str
    title: str
    unit: str | None = None


STATS_COLUMNS = (
    Column("numel", "Elements", "elements"),
    Column("mean", "Mean"),
    Column("std", "Std"),
    Column("min", "Min"),
    Column("max", "Max"),
    Column("l2", "L2"),
    Column("zeros", "Zeros", "elements"),
    Column("nan", "NaN", "elements"),
    Column("inf", "Inf", "elements"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report: `values` by column name, and the statistics where the probe takes them."""

    values: Mapping[str, Any]
    stats: TensorStats | None = None

    @property
    def fqn(self) -> str:
        """The fully qualified name of the module or parameter; "" is the model itself."""
        return str(self.values.get("fqn", ""))

    def flat(self) -> dict[str, Any]:
        """All values in one mapping, as machine formats write them."""
        return {**self.values, **({k: getattr(self.stats, k) for k in STATS_KEYS} if self.stats else {})}

    def __getitem__(self, key: str) -> Any:
        return getattr(self.stats, key) if self.stats and key in STATS_KEYS else self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Row:
        stats = {k: values[k] for k in STATS_KEYS if k in values}
        whole = len(stats) == len(STATS_KEYS)
        rest = {k: v for k, v in values.items() if not (whole and k in stats)}
        return cls(rest, TensorStats(**stats) if whole else None)


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was not measured, and why. An absent row is never mistaken for a zero.

    `path` tells which tensor of several, as in a row.
    """

    fqn: str
    reason: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: its id, how bad it is, where, the figure and the threshold it crossed.

    `hint` tells what it usually means and what to try; `file` and `line` where the model's own code for this place
    begins, as far as that is known.
    """

    check: str
    severity: str
    fqn: str
    message: str
    value: float | None = None
    threshold: float | None = None
    hint: str = ""
    file: str | None = None
    line: int | None = None

    def fails(self, severity: str) -> bool:
        """Whether it is at least as bad, as --fail-on has it."""
        return self.severity in SEVERITIES[: SEVERITIES.index(severity) + 1]


@dataclass(frozen=True)
class Report:
    """One probe's view of one run."""

    probe: str
    model: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    meta: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, Any] = field(default_factory=dict)
    skipped: Sequence[Skipped] = ()
    findings: Sequence[Finding] = ()
    grouping: str = "nested"
    """What a row of a container stands for: "nested", its parts too; "disjoint", itself alone; "events": rows are not
    places but what happened there, in order; "steps": what became of the same things, step after step; "list": each is
    shown, whatever the depth."""

    def to_dict(self) -> dict[str, Any]:
        """The report as the JSON contract has it (design, section 3); floats stay floats."""
        return {
            "probe": self.probe,
            "model": self.model,
            "meta": dict(self.meta),
            "columns": [asdict(column) for column in self.columns],
            "rows": [row.flat() for row in self.rows],
            "totals": dict(self.totals),
            "skipped": [{k: v for k, v in asdict(item).items() if v or k != "path"} for item in self.skipped],
            "findings": [asdict(item) for item in self.findings],
            **({"grouping": self.grouping} if self.grouping != "nested" else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The inverse of `to_dict`, also of what `strict` made of it."""
        given = data
        data = relaxed(data)
        return cls(
            probe=data["probe"],
            model=data["model"],
            columns=tuple(Column(**column) for column in given["columns"]),  # one is titled NaN
            rows=tuple(Row.from_flat(row) for row in data["rows"]),
            meta=data["meta"],
            totals=data["totals"],
            skipped=tuple(Skipped(**item) for item in data["skipped"]),
            findings=tuple(Finding(**item) for item in data["findings"]),
            grouping=data.get("grouping", "nested"),
        )


def document(reports: Iterable[Report]) -> dict[str, Any]:
    """The one JSON document that holds the reports of a run."""
    return {"schema": SCHEMA, "reports": [strict(report.to_dict()) for report in reports]}


def strict(value: Any) -> Any:
    """The value with non-finite floats as the strings that strict JSON allows."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (str, float, int, NoneType)):  # most are, and to ask an abstract class takes long
        return value
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value


def relaxed(value: Any) -> Any:
    """The inverse of `strict`."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, (float, int, NoneType)):  # most are, and to ask an abstract class takes long
        return value
    if isinstance(value, Mapping):
        return {key: relaxed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [relaxed(item) for item in value]
    return value

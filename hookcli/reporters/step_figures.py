"""Figures over steps to chart: which columns of a report are charted, their curves, and the lines around them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hookcli.reporters import footer
from hookcli.table import Column, Report, Shown, agree, formatting
from hookcli.table.columns.recorded import CHARTED
from hookcli.table.formatting import counted

_SPREAD = 100.0  # ratio of largest to smallest figure above which the axis is logarithmic
_FLAT = 1e-6  # relative change of a figure that counts as none
_APART = 1e-3  # relative difference from which two runs count as apart
_CHARTED = 4  # figures, if none are chosen
WHERE = ("step", "forward")
"""Columns that a report of figures over steps has."""
Points = Sequence[tuple[int, float]]
"""Figures by step; NaN leaves a gap."""


@dataclass(frozen=True, slots=True)
class Curves:
    """A figure over steps: one curve, or those of two runs A and B.

    `flat` describes in one line a figure that never changed, but for rounding; such a figure is not drawn. `lost` are
    steps in which the figure is NaN or infinite.
    """

    title: str
    points: Sequence[Points]
    logarithmic: bool
    remark: str = ""
    flat: str = ""
    lost: Sequence[int] = field(default=())

    @property
    def heading(self) -> str:
        """The title, with the remark and the scale in brackets."""
        said = [*filter(None, [self.remark]), *(["logarithmic"] if self.logarithmic else [])]
        return self.title + (f" ({', '.join(said)})" if said else "")


def chosen(report: Report, all_of_them: bool) -> tuple[list[Column], list[Column]]:
    """Return the columns to draw, and further ones that could be drawn: those that have figures."""
    known = {column.name: column for column in report.columns if _is_figure(report, column)}
    loss = [name for name in known if name.startswith("loss_")]  # of optimizers that step in turns
    first = [known[name] for name in (CHARTED[0], *loss, *CHARTED[1:]) if name in known][:_CHARTED]
    if all_of_them or not first:
        return list(known.values()), []
    return first, [column for column in known.values() if column not in first and column.shown != Shown.MARK]


def _is_figure(report: Report, column: Column) -> bool:
    is_other = "against" in report.meta and column.name.endswith("_b")
    names = (column.name, f"{column.name}_b")
    known = any(not math.isnan(_finite(row.get(name))) for row in report.rows for name in names)
    return known and column.name not in WHERE and not is_other


def curves(report: Report, columns: Sequence[Column]) -> Iterator[Curves]:
    """The figure of each column."""
    for column in columns:
        title = f"{column.title} ({column.unit})" if column.unit in ("seconds", "bytes") else column.title
        losses = [*report.meta.get("loss_of_steps", ()), (), ()][:2]
        whole = [[(int(step), loss) for step, loss in known if column.name == "loss"] for known in losses]
        if against(report):
            names = (column.name, f"{column.name}_b")
            yield _compared(title, *(own or _own_points(report, name) for own, name in zip(whole, names, strict=True)))
        else:
            yield _alone(title, whole[0] or [(row["step"], row.get(column.name)) for row in report.rows])


def against(report: Report) -> Mapping[str, str]:
    """The names of two runs, "a" and "b", whose figures a report has beside each other; empty for one run."""
    names: Mapping[str, str] = report.meta.get("against", {})
    return names


def _alone(title: str, found: Sequence[tuple[int, object]]) -> Curves:
    points = [(step, _finite(value)) for step, value in found]
    known = [value for _, value in points if not math.isnan(value)]
    lost = [step for step, value in found if isinstance(value, float) and not math.isfinite(value)]
    flat = ""
    if _is_flat(known):
        where = "throughout" if len(known) >= len(points) else f"in {len(known)} of {len(points)} recorded steps"
        flat = f"{title}: {formatting.number(known[0])}" + (f" {where}" if points[1:] else "")
    more = f" and {counted(len(lost) - 1, 'more step')}" if lost[1:] else ""
    remark = f"NaN or Inf in step {lost[0]:,}{more}" if lost else ""
    return Curves(title, [points], _is_logarithmic(known), remark, flat=flat, lost=lost)


def _compared(title: str, ours: Points, theirs: Points) -> Curves:
    """A figure of two runs, with the first step in which they are apart; in one line if neither changed."""
    parted = _apart(ours, theirs)
    shown = [[(step, _finite(value)) for step, value in points] for points in (ours, theirs)]
    a, b = ([value for _, value in points if not math.isnan(value)] for points in shown)
    flat = ""
    if all(not values or _is_flat(values) for values in (a, b)):
        where = "throughout" if [*map(len, shown)] == [len(a), len(b)] else f"({parted})"
        said = {f"{name} {formatting.number(values[0])}": None for name, values in (("A", a), ("B", b)) if values}
        alike = a and b and _is_flat([a[0], b[0]])
        flat = f"{title}: {formatting.number(a[0]) if alike else ', '.join(said)} {where}"
    lost = sorted({step for step, value in (*ours, *theirs) if not math.isfinite(value)})
    return Curves(title, shown, _is_logarithmic([*a, *b]), parted, flat, lost)


def _apart(ours: Points, theirs: Points) -> str:
    """Say in which step two runs part, and where they end."""
    other = dict(theirs)
    pairs = [(step, a, other[step]) for step, a in ours if step in other]
    if not pairs:
        return "no step in both"
    parted = [pair for pair in pairs if not agree(*pair[1:], rel_tol=_APART)]
    if not parted:
        return f"A and B agree within {_APART:.1%}"
    first, last = (
        f"step {step:,}: A {formatting.loss(a)}, B {formatting.loss(b)}" for step, a, b in (parted[0], pairs[-1])
    )
    return f"apart from {first}" + (f"; {last}" if pairs[-1] != parted[0] else "")


def _own_points(report: Report, name: str) -> Points:
    """Return a run's own points, NaN and infinite ones too; the other one may have recorded further steps."""
    return [(row["step"], value) for row in report.rows if isinstance(value := row.get(name), (int, float))]


def _is_flat(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _FLAT * max(map(abs, values))


def _is_logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > _SPREAD * min(values)


def _finite(value: object) -> float:
    """Return the figure; NaN, which leaves a gap, if it is missing or not finite."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else math.nan


def above(report: Report) -> str:
    """Describe the run and its recorded steps."""
    steps = [row["step"] for row in report.rows]
    if not steps:
        return f"{footer.run_line(report)} · nothing was recorded"
    where = f"{steps[0]:,}" if steps[0] == steps[-1] else f"{steps[0]:,} to {steps[-1]:,}"
    what = "recorded forward" if report.meta.get("mode") == "no grad" else "recorded step"
    return f"{footer.run_line(report)} · {counted(len(steps), what)} ({where})"


def below(report: Report, others: Sequence[Column]) -> Iterator[str]:
    """The steps with non-finite values, what is not shown, and further columns that could be."""
    counts = [column.name for column in report.known_columns() if column.shown == Shown.MARK]
    if steps := [row["step"] for row in report.rows if any(map(row.get, counts))]:  # which the charts leave out
        more = f" and {counted(len(steps) - 1, 'more step')}" if steps[1:] else ""
        yield f"NaN or Inf in step {steps[0]:,}{more}"
    if report.skipped:
        yield f"not shown: {footer.skipped_line(report)}"
    if others:
        names = [column.name for column in others]
        yield f"more figures: {', '.join(names)}; choose with --columns, for example --columns {','.join(names[:2])}"

"""Charts of figures over steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from hookcli.report import Column, Report, agree, formatting
from hookcli.report.grouping import View
from hookcli.reporters import footer
from hookcli.reporters.base import Reporter
from hookcli.reporters.curves import BOTH, A, B, Points, curve, two_curves
from hookcli.system.wrapping import wrapped

_WIDTH = 80  # of a file or pipe, as that of a plain terminal
_WIDEST = 120
_LOWEST, _HEIGHT, _TALLEST = 7, 9, 15  # lines of a chart, with its axis: at least, usually, and of one alone
_SPREAD = 100.0  # ratio of largest to smallest figure above which the axis is logarithmic
_FLAT = 1e-6  # relative change of a figure that counts as none
_APART = 1e-3  # relative difference from which two runs count as apart
_FIRST = ("loss", "lr", "param_grad", "ratio", "std", "output_grad", "weight")
_CHARTED = 4  # figures, if none are chosen
_WHERE = ("step", "forward")
_COUNTS = ("nan", "inf", "grad_nan", "grad_inf")


class ChartReporter(Reporter):
    """A chart for each of the first figures of a report of steps, or of the chosen ones; plain text."""

    needs = _WHERE
    command = "hookcli show --over-time"
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Draw the charts of each report."""
        return "\n".join("\n".join(_lines(formatting.printable(report), view)) + "\n" for report in reports)


def _lines(report: Report, view: View) -> Iterator[str]:
    columns, others = _chosen(report, bool(view.columns))
    lines = (view.height - 3) // max(len(columns), 1) - 1 if view.height else _HEIGHT
    most = _HEIGHT if columns[1:] else _TALLEST
    size = min(view.width or _WIDTH, _WIDEST), min(max(lines, _LOWEST), most)
    for line in chain(_above(report), _figures(report, columns, size), _below(report, others)):
        yield line if line.startswith(" ") else wrapped(line, view.width)


def _above(report: Report) -> Iterator[str]:
    yield footer.run_line(report) + f" · {_span(report)}"
    if "against" in report.meta:
        names = report.meta["against"]
        yield f"{A} A: {names['a']}   {B} B: {names['b']}   {BOTH} both"


def _figures(report: Report, columns: Sequence[Column], size: tuple[int, int]) -> Iterator[str]:
    for column in columns:
        title = f"{column.title} ({column.unit})" if column.unit in ("seconds", "bytes") else column.title
        if "against" in report.meta:
            ours, theirs = (_own_points(report, name) for name in (column.name, f"{column.name}_b"))
            yield from _compared(title, ours, theirs, size)
        else:
            yield from _figure(title, [(row["step"], _finite(row.get(column.name))) for row in report.rows], size)


def _below(report: Report, others: Sequence[Column]) -> Iterator[str]:
    yield from _bad(report)
    if report.skipped:
        yield f"not shown: {footer.skipped_line(report)}"
    if others:
        names = [column.name for column in others]
        yield f"more figures: {', '.join(names)}; choose with --columns, for example --columns {','.join(names[:2])}"


def _chosen(report: Report, all_of_them: bool) -> tuple[list[Column], list[Column]]:
    """Return the columns to draw, and further ones that could be drawn: those that have figures."""
    known = {column.name: column for column in report.columns if _is_figure(report, column)}
    first = [known[name] for name in _FIRST if name in known][:_CHARTED]
    if all_of_them or not first:
        return list(known.values()), []
    return first, [column for column in known.values() if column not in first and column.name not in _COUNTS]


def _is_figure(report: Report, column: Column) -> bool:
    is_other = "against" in report.meta and column.name.endswith("_b")
    names = (column.name, f"{column.name}_b")
    known = any(not math.isnan(_finite(row.get(name))) for row in report.rows for name in names)
    return known and column.name not in _WHERE and not is_other


def _figure(title: str, points: Points, size: tuple[int, int]) -> Iterator[str]:
    """Draw a chart with its title; a figure that never changed, but for rounding, takes one line."""
    known = [value for _, value in points if not math.isnan(value)]
    if _is_flat(known):
        where = "throughout" if len(known) >= len(points) else f"in {len(known)} of {len(points)} recorded steps"
        yield f"{title}: {formatting.number(known[0])}" + (f" {where}" if points[1:] else "")
        return
    yield title + (" (logarithmic)" if _is_logarithmic(known) else "")
    yield from curve(points, _is_logarithmic(known), size)


def _compared(title: str, ours: Points, theirs: Points, size: tuple[int, int]) -> Iterator[str]:
    """Draw a figure of two runs, with the first step in which they are apart; in one line if neither changed."""
    parted = _apart(ours, theirs)
    shown = [[(step, _finite(value)) for step, value in points] for points in (ours, theirs)]
    a, b = ([value for _, value in points if not math.isnan(value)] for points in shown)
    if all(not values or _is_flat(values) for values in (a, b)):
        where = "throughout" if [*map(len, shown)] == [len(a), len(b)] else f"({parted})"
        said = {f"{name} {formatting.number(values[0])}": None for name, values in (("A", a), ("B", b)) if values}
        alike = a and b and _is_flat([a[0], b[0]])
        yield f"{title}: {formatting.number(a[0]) if alike else ', '.join(said)} {where}"
        return
    scale = ", logarithmic" if _is_logarithmic([*a, *b]) else ""
    yield f"{title} ({parted}{scale})"
    yield from two_curves(shown[0], shown[1], bool(scale), size)


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


def _finite(value: Any) -> float:
    """Return the figure; NaN, which leaves a gap, if it is missing or not finite."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else math.nan


def _span(report: Report) -> str:
    steps = [row["step"] for row in report.rows]
    if not steps:
        return "nothing was recorded"
    where = f"{steps[0]:,}" if steps[0] == steps[-1] else f"{steps[0]:,} to {steps[-1]:,}"
    what = "recorded forward" if report.meta.get("mode") == "no grad" else "recorded step"
    return f"{formatting.counted(len(steps), what)} ({where})"


def _bad(report: Report) -> Iterator[str]:
    """Name the steps with non-finite values, which the charts leave out."""
    steps = [row["step"] for row in report.rows if any(map(row.get, _COUNTS))]
    if steps:
        more = f" and {formatting.counted(len(steps) - 1, 'more step')}" if steps[1:] else ""
        yield f"NaN or Inf in step {steps[0]:,}{more}"

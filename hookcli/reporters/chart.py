"""Charts of figures over steps, drawn with characters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from hookcli.report import Column, Report, formatting
from hookcli.report.grouping import View
from hookcli.reporters import footer
from hookcli.reporters.base import Reporter

_WIDTH = 80  # of a file or pipe, as that of a plain terminal
_WIDEST = 120
_LOWEST, _HEIGHT = 7, 9  # lines of a chart, with its axis
_DOTTED = 40  # up to this many points are drawn as separate points
_SPREAD = 100.0  # ratio of largest to smallest figure above which the axis is logarithmic
_FLAT = 1e-6  # relative change of a figure that counts as none
_LABEL = 10  # columns for the axis labels, equal in all charts so that steps line up
_TICKS = 5
_MARK_B = "x"  # points of the record that another is shown against
_Points = Sequence[tuple[int, float]]


class ChartReporter(Reporter):
    """A chart for each figure of a report of steps; plain text without escape codes."""

    needs = ("step", "forward")
    command = "hookcli show --over-time"
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Draw the charts of each report."""
        return "\n".join("\n".join(_lines(formatting.printable(report), view)) + "\n" for report in reports)


def _lines(report: Report, view: View) -> Iterator[str]:
    columns = [column for column in report.columns if _is_charted(report, column)]
    lines = (view.height - 3) // max(len(columns), 1) - 1 if view.height else _HEIGHT
    size = min(view.width or _WIDTH, _WIDEST), min(max(lines, _LOWEST), _HEIGHT)
    yield footer.run_line(report) + f" · {_span(report)}"
    if "against" in report.meta:
        yield f"• A: {report.meta['against']['a']}   {_MARK_B} B: {report.meta['against']['b']}"
    for column in columns:
        points, other = (
            [(row["step"], _finite(row.get(name))) for row in report.rows] for name in (column.name, f"{column.name}_b")
        )
        yield from _figure(column.title, points, other, size)
    yield from _bad(report)
    if report.skipped:
        yield f"not shown: {footer.skipped_line(report)}"


def _figure(title: str, points: _Points, other: _Points, size: tuple[int, int]) -> Iterator[str]:
    """Draw a chart with its title; a figure that never changed, but for rounding, takes one line.

    `other` are the points of the record that this one is shown against; all NaN without one.
    """
    known = [value for _, value in (*points, *other) if not math.isnan(value)]
    if max(known) - min(known) <= _FLAT * max(map(abs, known)):
        where = "throughout" if len(known) >= len(points) else f"in {len(known)} of {len(points)} recorded steps"
        yield f"{title}: {formatting.number(known[0])}" + (f" {where}" if points[1:] else "")
        return
    logarithmic = min(known) > 0 and max(known) > _SPREAD * min(known)
    yield title + (" (logarithmic)" if logarithmic else "")
    yield from _chart(points, other, logarithmic, size)


def _finite(value: Any) -> float:
    """Return the figure; NaN, which leaves a gap, if it is missing or not finite."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else math.nan


def _is_charted(report: Report, column: Column) -> bool:
    """Return whether a column is drawn: those without a unit and with a figure, except means of outputs."""
    is_other = "against" in report.meta and column.name.endswith("_b")
    if column.unit or column.name in ("step", "forward", "mean") or is_other:
        return False
    names = (column.name, f"{column.name}_b")
    return any(not math.isnan(_finite(row.get(name))) for row in report.rows for name in names)


def _span(report: Report) -> str:
    steps = [row["step"] for row in report.rows]
    if not steps:
        return "nothing was recorded"
    where = f"{steps[0]:,}" if steps[0] == steps[-1] else f"{steps[0]:,} to {steps[-1]:,}"
    return f"{formatting.counted(len(steps), 'recorded step')} ({where})"


def _chart(points: _Points, other: _Points, logarithmic: bool, size: tuple[int, int]) -> Iterator[str]:
    import plotext as plt

    steps = [step for step, _ in points]
    heights, others = (
        [math.log10(value) if logarithmic and not math.isnan(value) else value for _, value in found]
        for found in (points, other)
    )
    plt.clear_figure()
    plt.limit_size(False, False)  # by the terminal: there may be none
    plt.plotsize(*size)
    plt.xaxes(True, False)
    plt.yaxes(True, False)
    plt.plot(steps, heights, marker="braille")
    if len(steps) <= _DOTTED:
        plt.scatter(steps, heights, marker="•")
    if any(not math.isnan(height) for height in others):
        plt.scatter(steps, others, marker=_MARK_B)
    shown = sorted({steps[round(i * (len(steps) - 1) / (_TICKS - 1))] for i in range(_TICKS)})
    plt.xticks(shown, [f"{step:,}" for step in shown])
    low, high = (limit(height for height in (*heights, *others) if not math.isnan(height)) for limit in (min, max))
    levels = [low, (low + high) / 2, high]
    plt.yticks(levels, [formatting.number(10**level if logarithmic else level).rjust(_LABEL) for level in levels])
    return (line.rstrip() for line in plt.uncolorize(plt.build()).splitlines())


def _bad(report: Report) -> Iterator[str]:
    """Name the steps with non-finite values, which the charts leave out."""
    counts = ("nan", "inf", "grad_nan", "grad_inf")
    steps = [row["step"] for row in report.rows if any(row.get(name) for name in counts)]
    if steps:
        more = f" and {formatting.counted(len(steps) - 1, 'more step')}" if steps[1:] else ""
        yield f"NaN or Inf in step {steps[0]:,}{more}"

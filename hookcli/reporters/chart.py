"""Charts of figures over steps, and of memory over a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from hookcli.reporters import moments
from hookcli.reporters.base import Reporter
from hookcli.reporters.curves import BOTH, A, B, curve, memory_curve, two_curves
from hookcli.reporters.step_figures import WHERE, Curves, above, against, below, chosen, curves
from hookcli.system.wrapping import wrapped
from hookcli.table import Report
from hookcli.table.grouping import View
from hookcli.table.printable import printable

_WIDTH = 80  # of a file or pipe, as that of a plain terminal
_WIDEST = 120
_LOWEST, _HEIGHT, _TALLEST = 7, 9, 15  # lines of a chart, with its axis: at least, usually, and of one alone


class ChartReporter(Reporter):
    """A chart for each of the first figures of a report of steps, or of the chosen ones, or of memory; plain text."""

    needs_one = (WHERE, moments.NEEDS)
    commands = ("hookcli show --over-time", "hookcli memory")
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Draw the charts of each report."""
        drawn = (_timeline if moments.is_timeline(report) else _lines for report in reports)
        return "\n".join(
            "\n".join(lines(printable(report), view)) + "\n" for lines, report in zip(drawn, reports, strict=True)
        )


def _lines(report: Report, view: View) -> Iterator[str]:
    columns, others = chosen(report, bool(view.columns))
    lines = (view.height - 3) // max(len(columns), 1) - 1 if view.height else _HEIGHT
    most = _HEIGHT if columns[1:] else _TALLEST
    size = min(view.width or _WIDTH, _WIDEST), min(max(lines, _LOWEST), most)
    drawn = chain.from_iterable(_drawn(figure, size) for figure in curves(report, columns))
    for line in chain(_above(report), drawn, below(report, others)):
        yield line if line.startswith(" ") else wrapped(line, view.width)


def _timeline(report: Report, view: View) -> Iterator[str]:
    """Draw the bytes in use from the first operator of a step to the last."""
    lines = min(max((view.height or _TALLEST + 4) - 4, _LOWEST), 2 * _TALLEST)
    size = min(view.width or _WIDTH, _WIDEST), lines
    yield wrapped(moments.above(report), view.width)
    if report.rows:
        yield from memory_curve([row["highest"] for row in report.rows], moments.phases(report), size)
    yield from (wrapped(line, view.width) for line in moments.held(report))


def _above(report: Report) -> Iterator[str]:
    yield above(report)
    if names := against(report):
        yield f"{A} A: {names['a']}   {B} B: {names['b']}   {BOTH} both"


def _drawn(figure: Curves, size: tuple[int, int]) -> Iterator[str]:
    """Draw a chart with its title; a figure that never changed takes one line."""
    if figure.flat:
        yield figure.flat
        return
    yield figure.heading
    if figure.points[1:]:
        yield from two_curves(figure.points[0], figure.points[1], figure.logarithmic, size)
    else:
        yield from curve(figure.points[0], figure.logarithmic, size)

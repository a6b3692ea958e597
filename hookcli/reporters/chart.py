"""Charts of figures over steps, and of memory over a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from hookcli.reporters import moments
from hookcli.reporters.base import Reporter
from hookcli.reporters.curves import SHARED, curve, marks, memory_curve, several_curves
from hookcli.reporters.footer import next_line
from hookcli.reporters.step_figures import WHERE, Curves, above, against, below, chosen, curves
from hookcli.reporters.table_text import table_text
from hookcli.system.escaping import visible
from hookcli.system.wrapping import wrapped
from hookcli.table import Report
from hookcli.table.columns import names
from hookcli.table.columns.recorded import RUNS, RUNS_PROBE
from hookcli.table.grouping import View
from hookcli.table.meta import without
from hookcli.table.printable import printable

_WIDTH = 80  # of a file or pipe, as that of a plain terminal
_WIDEST = 120
_LOWEST, _HEIGHT, _TALLEST = 7, 9, 15  # lines of a chart, with its axis: at least, usually, and of one alone


class ChartReporter(Reporter):
    """A chart for each of the first figures of a report of steps, or of the chosen ones, or of memory; plain text."""

    needs_one = (WHERE, moments.NEEDS, names(RUNS[:2]))
    commands = ("hookcli show --over-time", "hookcli memory")
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Draw the charts of each report; the table of several runs stands before theirs."""
        plain = [replace(report, meta=without(report.meta, "next")) for report in reports]
        then = visible(next_line(reports))
        return "\n".join([*(_drawn(report, view) for report in plain), *([then + "\n"] if then else [])])


def _drawn(report: Report, view: View) -> str:
    if report.probe == RUNS_PROBE:
        return table_text([report], view)
    lines = (_timeline if moments.is_timeline(report) else _lines)(printable(report), view)
    return "\n".join(lines) + "\n"


def _lines(report: Report, view: View) -> Iterator[str]:
    columns, others = chosen(report, bool(view.columns))
    lines = (view.height - 3) // max(len(columns), 1) - 1 if view.height else _HEIGHT
    most = _HEIGHT if columns[1:] else _TALLEST
    size = min(view.width or _WIDTH, _WIDEST), min(max(lines, _LOWEST), most)
    runs = {side.upper(): name for side, name in against(report).items()}
    signs = marks([*runs])
    drawn = chain.from_iterable(_chart(figure, signs, size) for figure in curves(report, columns))
    for line in chain([above(report), *_legend(runs, signs)], drawn, below(report, others)):
        yield line if line.startswith(" ") else wrapped(line, view.width)


def _timeline(report: Report, view: View) -> Iterator[str]:
    """Draw the bytes in use from the first operator of a step to the last."""
    lines = min(max((view.height or _TALLEST + 4) - 4, _LOWEST), 2 * _TALLEST)
    size = min(view.width or _WIDTH, _WIDEST), lines
    yield wrapped(moments.above(report), view.width)
    if report.rows:
        yield from memory_curve([row["highest"] for row in report.rows], moments.phases(report), size)
    yield from (wrapped(line, view.width) for line in moments.held(report))


def _legend(runs: Mapping[str, str], signs: Sequence[str]) -> list[str]:
    """The marks of several runs, with their names."""
    named = [
        f"{sign if sign == letter[-1:] else f'{sign} {letter}'}: {name}"
        for sign, (letter, name) in zip(signs, runs.items(), strict=False)
    ]
    return ["   ".join([*named, f"{SHARED} {'both' if len(runs) <= len('AB') else 'several'}"])] if runs else []


def _chart(figure: Curves, signs: Sequence[str], size: tuple[int, int]) -> Iterator[str]:
    """Draw a chart with its title; a figure that never changed takes one line."""
    if figure.flat:
        yield figure.flat
        return
    yield figure.heading
    if figure.points[1:]:
        yield from several_curves(figure, signs, size)
    else:
        yield from curve(figure, size)

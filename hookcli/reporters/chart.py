"""Charts of figures over steps, and of memory over a step, drawn with characters: plain text without escape codes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise

from hookcli.reporters import moments
from hookcli.reporters.base import Reporter, drawing
from hookcli.reporters.canvas import Canvas
from hookcli.reporters.footer import next_line
from hookcli.reporters.step_axis import time_marks, x_label
from hookcli.reporters.step_figures import WHERE, Curves, above, against, below, choose, chosen, curves
from hookcli.reporters.table_text import table_text
from hookcli.system.escaping import visible, wrapped
from hookcli.table import Report, formatting
from hookcli.table.columns import names
from hookcli.table.columns.recorded import RUNS, RUNS_PROBE
from hookcli.table.grouping import View
from hookcli.table.meta import without
from hookcli.table.printable import printable

_WIDTH = 80  # of a file or pipe, as a plain terminal has it
_WIDEST = 120
_LOWEST, _HEIGHT, _TALLEST = 7, 9, 15  # lines of a chart, with its axis: at least, usually, and of one alone
_NAMED = 4  # further figures on a terminal
_AROUND = 3  # lines of a terminal for the prompt, a remark, and the next command


class ChartReporter(Reporter):
    """Charts of a report of steps, or of memory, as plain text: of the chosen figures, or the first that have room."""

    needs_one = (WHERE, moments.NEEDS, names(RUNS[:2]))
    commands = ("hookcli show --over-time", *drawing("moments"))
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Draw the charts of each report; the table of several runs stands before theirs."""
        parts: list[str] = []
        for report in reports:
            plain = replace(report, meta=without(report.meta, "next"))
            parts.append(_drawn(plain, view, sum(part.count("\n") + 1 for part in parts)))
        then = visible(next_line(reports))
        return "\n".join([*parts, *([then + "\n"] if then else [])])


def _drawn(report: Report, view: View, used: int) -> str:
    if report.probe == RUNS_PROBE:
        return table_text([report], view)
    shown = printable(report)
    lines = _timeline(shown, view) if moments.is_timeline(report) else _lines(shown, view, used)
    return "\n".join(lines) + "\n"


def _lines(report: Report, view: View, used: int) -> Iterator[str]:
    """Draw the chosen figures; else those for which a terminal has room below the lines that are `used`."""
    columns, others = chosen(report, bool(view.columns))
    runs = {side.upper(): name for side, name in against(report).items()}
    signs = marks([*runs])
    figures = list(curves(report, columns))
    head = [wrapped(line, view.width) for line in (above(report), *_legend(runs, signs))]
    named = _NAMED if view.height else None
    tail = below(report, [*columns, *others], named)
    heads, around = (
        [wrapped(line, view.width).count("\n") + 1 for line in lines]
        for lines in ([figure.flat or figure.heading for figure in figures], [*head, *tail])
    )
    room = (view.height or 0) - used - _AROUND - sum(around)
    if view.height and not view.columns:
        needed = accumulate(lines + _LOWEST * (not figure.flat) for lines, figure in zip(heads, figures, strict=True))
        fitting = max(sum(lines <= room for lines in needed), int(not used))
        figures, columns, others = figures[:fitting], columns[:fitting], [*columns[fitting:], *others]
        if not figures:
            yield wrapped(choose(f"{report.model}: no room for charts", others, named), view.width)
            return
    charts = [figure for figure in figures if not figure.flat]
    lines = (room - sum(heads[: len(figures)])) // max(len(charts), 1) if view.height else _HEIGHT
    size = min(view.width or _WIDTH, _WIDEST), min(max(lines, _LOWEST), _HEIGHT if columns[1:] else _TALLEST)
    yield from head
    drawn = chain.from_iterable(_chart(figure, signs, size) for figure in figures)
    for line in chain(drawn, below(report, others, named)):
        yield line if line.startswith(" ") else wrapped(line, view.width)


def _timeline(report: Report, view: View) -> Iterator[str]:
    """Draw the bytes in use from the first operator of a step to the last."""
    head, *tail = (wrapped(line, view.width) for line in (moments.above(report), *moments.held(report)))
    around = sum(text.count("\n") + 1 for text in (head, *tail)) + 1  # with the prompt
    lines = min(max(view.height - around, _LOWEST), 2 * _TALLEST) if view.height else _TALLEST
    size = min(view.width or _WIDTH, _WIDEST), lines
    yield head
    if report.rows:
        yield from memory_curve([row["highest"] for row in report.rows], moments.phases(report), size)
    yield from tail


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


_DOT, _CROSS, SHARED = "•", "x", "*"
_DOTTED = 40  # up to this many points are drawn as separate points
_TICKS = 5
_DIGITS = 12  # of a label at most


def curve(figure: Curves, size: tuple[int, int]) -> Iterator[str]:
    """Draw the only curve of a figure in `size` columns and lines."""
    steps, heights = zip(*((step, _height(value, figure.logarithmic)) for step, value in figure.points[0]), strict=True)
    canvas = Canvas(size, (steps[0], steps[-1]), _levels(heights, figure.logarithmic))
    points = [*zip(steps, heights, strict=True)]
    canvas.curve(points)
    if len(steps) <= _DOTTED:
        canvas.mark(points, _DOT)
    return canvas.lines(*_ticks(steps, figure.over_time))


def marks(letters: Sequence[str]) -> Sequence[str]:
    """The marks of the curves of runs with these letters: more than two are marked by their letters."""
    return (_DOT, _CROSS) if len(letters) <= 2 else [letter[-1:] or "?" for letter in letters]


def several_curves(figure: Curves, marks: Sequence[str], size: tuple[int, int]) -> Iterator[str]:
    """Draw curves, a mark for each in each column, so that they can be told apart where they cross."""
    logarithmic = figure.logarithmic
    curves = [[(step, _height(_cut(value, figure), logarithmic)) for step, value in points] for points in figure.points]
    every = [*chain.from_iterable(curves)]
    steps, heights = sorted({step for step, _ in every}), [height for _, height in every]
    canvas = Canvas(size, (steps[0], steps[-1]), _levels(heights, logarithmic))
    drawn = [set(_cells([canvas.at(step, y) for step, y in points])) for points in curves]
    counts = Counter(chain.from_iterable(drawn))
    lone = [{cell for cell in cells if counts[cell] == 1} for cells in drawn]
    shared = {cell for cell, count in counts.items() if count > 1}
    for cells, mark in zip([*lone, shared], [*marks, SHARED], strict=True):
        canvas.fill(cells, mark)
    return canvas.lines(*_ticks(steps, figure.over_time))


def _cut(value: float, figure: Curves) -> float:
    """The value, or the limit that it is beyond."""
    low, high = figure.limits or (value, value)
    return value if math.isnan(value) else min(max(value, low), high)


def memory_curve(sizes: Sequence[int], phases: Sequence[tuple[str, int]], size: tuple[int, int]) -> Iterator[str]:
    """Draw bytes over time in `size` columns and lines; `phases` are named where they begin."""
    levels = [max(sizes) * part / 4 for part in range(5)]
    canvas = Canvas(size, (0, len(sizes) - 1), {level: formatting.size(round(level)) for level in levels})
    canvas.curve(enumerate(sizes), filled=True)
    return canvas.lines([start for _, start in phases], [name for name, _ in phases])


def _cells(points: Sequence[tuple[float, float]]) -> Iterator[tuple[int, int]]:
    """Yield the column and line of each point, and of straight lines between them; none beside a gap."""
    for x, y in points:
        if not math.isnan(y):
            yield round(x), round(y)
    for (x, y), (right, after) in pairwise(points):
        if not (math.isnan(y) or math.isnan(after)):
            for column in range(math.ceil(x), math.floor(right) + 1):
                share = (column - x) / (right - x) if right > x else 0.0
                yield column, round(y + share * (after - y))


def _ticks(steps: Sequence[float], over_time: bool) -> tuple[list[float], list[str]]:
    places = time_marks(steps[0], steps[-1], _TICKS) if over_time else []
    places = places or sorted({steps[round(i * (len(steps) - 1) / (_TICKS - 1))] for i in range(_TICKS)})
    return places, [x_label(step, over_time=over_time) for step in places]


def _levels(heights: Sequence[float], logarithmic: bool) -> dict[float, str]:
    """The lowest height, the middle and the highest, with their labels: as many digits as tell them apart."""
    finite = [height for height in heights if not math.isnan(height)]
    levels = [min(finite), (min(finite) + max(finite)) / 2, max(finite)]
    values = [10**level if logarithmic else level for level in levels]
    labels = [formatting.number(value) for value in values]
    for digits in range(5, _DIGITS + 1):
        if len({*labels}) == len({*levels}):
            break
        labels = [f"{value:.{digits}g}" for value in values]
    return dict(zip(levels, labels, strict=True))


def _height(value: float, logarithmic: bool) -> float:
    return math.log10(value) if logarithmic and not math.isnan(value) else value

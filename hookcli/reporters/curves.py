"""Draws one curve, or several in one frame, with characters: plain text without escape codes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

from hookcli.reporters.step_figures import Curves, x_label
from hookcli.table import formatting

LABEL = 10
"""Columns of the labels at the left, equal in all charts so that steps line up."""
_DOT, _CROSS, SHARED = "•", "x", "*"
_DOTTED = 40  # up to this many points are drawn as separate points
_TICKS = 5


def curve(figure: Curves, size: tuple[int, int]) -> Iterator[str]:
    """Draw the only curve of a figure in `size` columns and lines."""
    steps, heights = zip(*((step, _height(value, figure.logarithmic)) for step, value in figure.points[0]), strict=True)
    plt = _frame(size)
    plt.plot(steps, heights, marker="braille")
    if len(steps) <= _DOTTED:
        plt.scatter(steps, heights, marker=_DOT)
    plt.xticks(*_ticks(steps, figure.over_time))
    plt.yticks(*_levels(heights, figure.logarithmic))
    return _built(plt)


def marks(letters: Sequence[str]) -> Sequence[str]:
    """The marks of the curves of runs with these letters: more than two are marked by their letters."""
    return (_DOT, _CROSS) if len(letters) <= 2 else [letter[-1:] or "?" for letter in letters]


def several_curves(figure: Curves, marks: Sequence[str], size: tuple[int, int]) -> Iterator[str]:
    """Draw curves, a mark for each in each column, so that they can be told apart where they cross."""
    logarithmic = figure.logarithmic
    curves = [[(step, _height(_cut(value, figure), logarithmic)) for step, value in points] for points in figure.points]
    steps = sorted({step for points in curves for step, _ in points})
    heights = [height for points in curves for _, height in points]
    columns, lines = size[0] - LABEL - 1, size[1] - 2
    low, high = _limits(heights)

    def at_column(step: float) -> float:
        return (step - steps[0]) / max(steps[-1] - steps[0], 1) * (columns - 1)

    def at_line(height: float) -> float:
        return (height - low) / (high - low) * (lines - 1)

    drawn = [set(_cells([(at_column(step), at_line(y)) for step, y in points])) for points in curves]
    counts = Counter(chain.from_iterable(drawn))
    plt = _frame(size)
    plt.xlim(0, columns - 1)
    plt.ylim(0, lines - 1)
    lone = [{cell for cell in cells if counts[cell] == 1} for cells in drawn]
    shared = {cell for cell, count in counts.items() if count > 1}
    for cells, mark in zip([*lone, shared], [*marks, SHARED], strict=True):
        if cells:
            plt.scatter([x for x, _ in cells], [y for _, y in cells], marker=mark)
    shown, names = _ticks(steps, figure.over_time)
    plt.xticks([round(at_column(step)) for step in shown], names)
    levels, labels = _levels(heights, logarithmic)
    plt.yticks([at_line(level) for level in levels], labels)
    return _built(plt)


def _cut(value: float, figure: Curves) -> float:
    """The value, or the limit that it is beyond."""
    low, high = figure.limits or (value, value)
    return value if math.isnan(value) else min(max(value, low), high)


def memory_curve(sizes: Sequence[int], phases: Sequence[tuple[str, int]], size: tuple[int, int]) -> Iterator[str]:
    """Draw bytes over time in `size` columns and lines; `phases` are named where they begin."""
    plt = _frame(size)
    plt.plot(range(len(sizes)), sizes, marker="braille", fillx=True)
    plt.xticks([start for _, start in phases], [name for name, _ in phases])
    plt.ylim(0, max(sizes))
    levels = [max(sizes) * part / 4 for part in range(5)]
    plt.yticks(levels, [formatting.size(round(level)).rjust(LABEL) for level in levels])
    return _built(plt)


def _cells(points: Sequence[tuple[float, float]]) -> Iterator[tuple[int, int]]:
    """Yield the column and line of each point, and those of straight lines between them; none beside a gap."""
    for x, y in points:
        if not math.isnan(y):
            yield round(x), round(y)
    for (x, y), (right, after) in pairwise(points):
        if not (math.isnan(y) or math.isnan(after)):
            for column in range(math.ceil(x), math.floor(right) + 1):
                share = (column - x) / (right - x) if right > x else 0.0
                yield column, round(y + share * (after - y))


def _frame(size: tuple[int, int]) -> Any:
    import plotext as plt

    plt.clear_figure()
    plt.limit_size(False, False)  # by the terminal: there may be none
    plt.plotsize(*size)
    plt.xaxes(True, False)
    plt.yaxes(True, False)
    return plt


def _built(plt: Any) -> Iterator[str]:
    return (line.rstrip() for line in plt.uncolorize(plt.build()).splitlines())


def _ticks(steps: Sequence[float], over_time: bool) -> tuple[list[float], list[str]]:
    shown = sorted({steps[round(i * (len(steps) - 1) / (_TICKS - 1))] for i in range(_TICKS)})
    return shown, [x_label(step, over_time=over_time) for step in shown]


def _levels(heights: Sequence[float], logarithmic: bool) -> tuple[list[float], list[str]]:
    low, high = _limits(heights)
    levels = [low, (low + high) / 2, high]
    return levels, [formatting.number(10**level if logarithmic else level).rjust(LABEL) for level in levels]


def _limits(heights: Sequence[float]) -> tuple[float, float]:
    known = [height for height in heights if not math.isnan(height)]
    return min(known), max(known)


def _height(value: float, logarithmic: bool) -> float:
    return math.log10(value) if logarithmic and not math.isnan(value) else value

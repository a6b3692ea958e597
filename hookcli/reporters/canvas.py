"""A chart of characters: cells and dots of braille within axes, plain text without escape codes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

LABEL = 10
"""Columns of the labels at the left, equal in all charts so that steps line up; more if a label is longer."""
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""The bits of Unicode's braille patterns (from U+2800 on), by column, and from the lowest dot up."""


class Canvas:
    """Axes of a chart in `size` columns and lines, and what is drawn between them.

    `across` are the values at the left and right edge. `levels` are the heights that have labels, the lowest at the
    bottom and the highest at the top.
    """

    def __init__(self, size: tuple[int, int], across: tuple[float, float], levels: Mapping[float, str]) -> None:
        self._label = max(LABEL, *map(len, levels.values()))
        self._width, self._lines = size[0], size[1] - 2
        self._columns = size[0] - self._label - 1
        self._across, self._up = across, (min(levels), max(levels))
        self._levels = levels
        self._cells: dict[tuple[int, int], str] = {}

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the column and line of a point, not rounded; the lowest line is 0."""
        return self._place(x, y, 1, 1)

    def _place(self, x: float, y: float, wide: int, high: int) -> tuple[float, float]:
        """The place of a point on a grid with so many columns and lines to a cell."""
        return _share(x, self._across) * (self._columns * wide - 1), _share(y, self._up) * (self._lines * high - 1)

    def fill(self, cells: Iterable[tuple[int, int]], mark: str) -> None:
        """Put a mark into cells, each a column and a line."""
        self._cells |= dict.fromkeys(cells, mark)

    def mark(self, points: Iterable[tuple[float, float]], mark: str) -> None:
        """Put a mark where each point is; none for NaN."""
        self.fill((_rounded(self.at(x, y)) for x, y in points if not math.isnan(y)), mark)

    def curve(self, points: Iterable[tuple[float, float]], *, filled: bool = False) -> None:
        """Draw lines between points, with a gap at NaN; if `filled`, also everything below them."""
        places = [None if math.isnan(y) else _rounded(self._place(x, y, 2, 4)) for x, y in points]
        dots = {place for place in places if place}
        for start, end in pairwise(places):
            if start and end:
                dots.update(_line(start, end))
        if filled:
            dots |= {(x, below) for x, y in dots for below in range(y)}
        patterns: dict[tuple[int, int], int] = defaultdict(lambda: 0x2800)
        for x, y in dots:
            patterns[x // 2, y // 4] |= _DOTS[x % 2][y % 4]
        self._cells |= {cell: chr(pattern) for cell, pattern in patterns.items()}

    def lines(self, ticks: Sequence[float], names: Sequence[str]) -> Iterator[str]:
        """Yield the lines of the chart, with the names below these values; a name that has no room is left out."""
        labels = {_rounded(self.at(self._across[0], level))[1]: text for level, text in self._levels.items()}
        for line in reversed(range(self._lines)):
            row = "".join(self._cells.get((column, line), " ") for column in range(self._columns))
            yield f"{labels.get(line, ''):>{self._label}}{'┤' if line in labels else '│'}{row}".rstrip()
        axis, below = ["─"] * self._columns, [" "] * self._width
        for value, name in zip(ticks, names, strict=True):
            column, _ = _rounded(self.at(value, self._up[0]))
            start = min(max(self._label + 1 + column - len(name) // 2, 0), self._width - len(name))
            if not "".join(below[max(start - 1, 0) : start + len(name) + 1]).strip():
                below[start : start + len(name)] = name
                axis[column] = "┬"
        yield f"{'':{self._label}}└{''.join(axis)}"
        yield "".join(below).rstrip()


def _share(value: float, limits: tuple[float, float]) -> float:
    """Where a value is between limits, from 0 to 1; in the middle if these are equal."""
    low, high = limits
    return (value - low) / (high - low) if high > low else 0.5


def _rounded(place: tuple[float, float]) -> tuple[int, int]:
    """The nearest cell or dot; 0.4999999999 counts as a half."""
    x, y = (math.floor(round(0.5 + value, 8)) for value in place)
    return x, y


def _line(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the dots between two dots, one for each step of the longer side."""
    (x, y), across, up = start, end[0] - start[0], end[1] - start[1]
    count = max(abs(across), abs(up))
    for step in range(1, count):
        yield x + across * step // count, y + up * step // count

"""Small bars beside the figures of a column, so that rows can be compared by eye on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hookcli.reporters.step_figures import is_logarithmic
from hookcli.table import Bar, Column, Kind, Row
from hookcli.table.grouping import View

GRADIENTS = ("parameter", "output", "input")
"""The `kind` of rows of gradients, which vanish or explode by their norms."""
SCALES = (Bar.LOG, Bar.SHARE)
_DECADES = 3  # that a logarithmic bar spans at least, so that figures that are nearly equal look so
_LONGEST = 8
_LEAST = 0.01  # so that the smallest figure can be told from zero
_ALONE = "l2"  # whose bars, for gradients, are shown even where its figures do not fit
_GAP = 2  # between columns
_SHORTEST = 3  # a bar with the space before it; one of a single cell tells little
_UPRIGHT = " ▁▂▃▄▅▆▇█"
_LYING = " ▏▎▍▌▋▊▉█"
_EIGHTHS = 8


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a column's bars: from empty at `low` to full at `high`, as powers of ten if `logarithmic`."""

    column: Column
    low: float
    high: float
    logarithmic: bool

    def level(self, row: Row) -> float:
        """The length of a row's bar, from 0 to 1; 0 for a figure that is zero or missing."""
        value = _value(row, self.column)
        if not value:
            return 0.0
        level = (math.log10(value) - self.low) / (self.high - self.low) if self.logarithmic else value / self.high
        return max(level, _LEAST)


def scale_of(rows: Sequence[Row], column: Column) -> Scale | None:
    """The scale of a column's bars; None for a column without bars, or where they say nothing.

    Shares of the whole are linear. Norms are logarithmic, and of use for gradients, which vanish and explode.
    """
    if column.bar not in SCALES:
        return None
    values = [value for row in rows if (value := _value(row, column))]
    if column.bar == Bar.SHARE and column.kind in (Kind.ELEMENTS, Kind.SHARE):
        return Scale(column, 0.0, 1.0, False) if values else None
    at_rest = "bytes" in rows[0].values or rows[0].get("kind") not in GRADIENTS
    if len(values) < 2 or (column.name == _ALONE and at_rest):
        return None
    if column.bar == Bar.SHARE:
        return Scale(column, 0.0, max(values), False)
    low, high = math.log10(min(values)), math.log10(max(values))
    return Scale(column, min(low, high - _DECADES), high, True)


def _value(row: Row, column: Column) -> float:
    """The figure that a bar shows; 0 if there is none, or it is not finite."""
    value = row.get(column.name)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return 0.0
    if column.kind == Kind.ELEMENTS:
        return value / row["numel"] if row.get("numel") else 0.0
    return float(value)


@dataclass(frozen=True, slots=True)
class DrawnBars:
    """The bars of a table: by the place of each column that is shown, in order, a bar per row, or none."""

    bars: Mapping[int, Sequence[str]]
    alone: Sequence[int] = ()
    """The column whose bars stand alone, without figures."""
    remarks: Sequence[str] = ()
    """A line on their scales."""

    @property
    def width(self) -> int:
        """The columns of the screen that all bars take."""
        return sum(max(map(len, texts), default=0) for texts in self.bars.values())


def drawn(
    rows: Sequence[Row], columns: Sequence[Column], places: Sequence[int], widths: Mapping[str, int], view: View
) -> DrawnBars:
    """Draw bars beside the columns at these places, as far as they fit into the width; none without a width."""
    none: Sequence[str] = ()
    if not view.bars or view.width is None or not rows:
        return DrawnBars(dict.fromkeys(places, none))
    spare = view.width + _GAP - sum(widths[columns[i].name] + _GAP for i in places)
    alone = [i for i, c in enumerate(columns) if c.name == _ALONE and i not in places and rows[0].get("kind")]
    alone = alone if spare > _SHORTEST else []
    places = sorted((*places, *alone))
    scales = {i: scale for i in places if (scale := scale_of(rows, columns[i]))}
    while scales and not (longest := _longest(spare - _GAP * len(alone), len(scales), ends=places[-1] in scales)):
        scales.popitem()
    places = [i for i in places if i not in alone or i in scales]
    by_place = {i: [bar(scales[i].level(row), longest) for row in rows] if i in scales else none for i in places}
    return DrawnBars(by_place, [i for i in alone if i in scales], [*_remarks([*scales.values()])])


def _remarks(scales: Sequence[Scale]) -> Iterator[str]:
    """A line on bars that are not shares, if there are any."""
    if titles := [scale.column.title for scale in scales if scale.logarithmic]:
        yield f"Bars on a log scale: {' and '.join(titles)}"


def _longest(spare: int, number: int, *, ends: bool) -> int:
    """The length of so many bars with the space before each; 0 if they don't fit.

    A bar stands in the gap after its column, but for one beside the last column.
    """
    length = min(1 + (spare - ends) // number, _LONGEST)
    return length if length >= _SHORTEST else 0


def bar(level: float, width: int) -> str:
    """A bar of at most this width, with the space before it."""
    return f" {lying(level, width - 1)}".ljust(width)


def lying(level: float, width: int) -> str:
    """A bar that lies, and fills this share of the width; visible if it is not zero."""
    whole, rest = divmod(math.ceil(level * width * _EIGHTHS), _EIGHTHS)
    return f"{_LYING[-1] * whole}{_LYING[rest] if rest else ''}"


def curve(values: Sequence[float | None], width: int) -> str:
    """A bar for the highest of each of `width` stretches of values, logarithmic as in charts; ! for a NaN."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    scale = math.log10 if known and is_logarithmic(known) else float
    low = scale(min(known, default=0.0))
    span = scale(max(known, default=0.0)) - low or 1.0

    def highest(part: Sequence[float | None]) -> str:
        own = [value for value in part if value is not None]
        if not all(map(math.isfinite, own)):
            return "!"
        return _UPRIGHT[1 + round((_EIGHTHS - 1) * (scale(max(own)) - low) / span)] if own else " "

    number = min(width, len(values))
    ends = [len(values) * n // max(number, 1) for n in range(number + 1)]
    return "".join(highest(values[begin:end]) for begin, end in pairwise(ends))

"""Small bars beside the figures of a column, so that rows can be compared by eye on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hookcli.report import Column, Row
from hookcli.report.formatting import number, quantity

_LOGARITHMIC = ("l2", "macs", "param_grad", "output_grad")
_SHARES = ("zeros",)  # of all elements
_DECADES = 3  # that a logarithmic bar spans at least, so that figures that are nearly equal look so
_LONGEST = 8
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
        value = _value(row, self.column.name)
        if not value:
            return 0.0
        return (math.log10(value) - self.low) / (self.high - self.low) if self.logarithmic else value

    def __str__(self) -> str:
        if not self.logarithmic:
            return f"{self.column.title} 0 to 100%"
        text: Any = quantity if self.column.name == "macs" else number
        ends = (text(round(10**end) if text is quantity else 10**end) for end in (self.low, self.high))
        return f"{self.column.title} {' to '.join(ends)} (logarithmic)"


def scale_of(rows: Sequence[Row], column: Column) -> Scale | None:
    """The scale of a column's bars; None for a column without bars, or without two figures to compare."""
    if column.name not in (*_LOGARITHMIC, *_SHARES):
        return None
    values = [value for row in rows if (value := _value(row, column.name))]
    if column.name in _SHARES:
        return Scale(column, 0.0, 1.0, False) if values else None
    if len(values) < 2:
        return None
    low, high = math.log10(min(values)), math.log10(max(values))
    return Scale(column, min(low, high - _DECADES), high, True)


def _value(row: Row, name: str) -> float:
    """The figure that a bar shows; 0 if there is none, or it is not finite."""
    value = row.get(name)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return 0.0
    if name in _SHARES:
        return value / row["numel"] if row.get("numel") else 0.0
    return float(value)


def room(scales: int, spare: int) -> int:
    """The width of each of so many bars: one character, which fits into the gap between columns, and all spare ones."""
    return min(1 + max(spare, 0) // scales, _LONGEST) if scales else 0


def bar(level: float, width: int) -> str:
    """A bar of this width: upright in one character, else lying, after a space if there is room for one."""
    if width == 1:
        return _UPRIGHT[math.ceil(level * _EIGHTHS)]
    gap = " " if width > 2 else ""
    width -= len(gap)
    whole, rest = divmod(math.ceil(level * width * _EIGHTHS), _EIGHTHS)
    return (gap + _LYING[-1] * whole + (_LYING[rest] if rest else "")).ljust(width + len(gap))

"""The horizontal axis of charts: steps, or the time since a run began."""

from __future__ import annotations

import math

_TIMES = (
    *(n * 10.0**power for power in (-3, -2, -1) for n in (1, 2, 5)),
    *(n * unit for unit in (1, 60) for n in (1, 2, 5, 10, 15, 30)),
    *(n * 3600 for n in (1, 2, 3, 6, 12, 24, 48, 120, 240)),
)
"""Distances between the marks of an axis of time, in seconds."""


def time_marks(low: float, high: float, most: int = 8) -> list[float]:
    """The marks of an axis of time between these seconds, at round distances: `most` of these, unless it is longer."""
    interval = next((each for each in _TIMES if high - low <= each * most), _TIMES[-1])
    return [n * interval for n in range(math.ceil(low / interval), math.floor(high / interval) + 1)]


def x_label(x: float, *, over_time: bool) -> str:
    """A place along the axis: 1,200, or 30 s, 1.5 min, 2 h; an image's axis may begin below 0."""
    if not over_time:
        return f"{x:,.0f}"
    unit, name = next((size, name) for size, name in ((3600, "h"), (60, "min"), (0, "s")) if abs(x) >= size)
    return f"{x / (unit or 1):.3g} {name}"

"""Norms of gradients, weights and updates over many parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hookcli.table.column import Column, Merge
from hookcli.table.columns.training import OF_PARAMETERS
from hookcli.table.row import Row


def gathered(rows: Iterable[Row], columns: Iterable[Column] = OF_PARAMETERS) -> dict[str, float | None]:
    """The norms over all parameters of the rows, their `ratio`, and counts of non-finite elements; None without any."""
    rows = list(rows)
    found: dict[str, float | None] = {}
    for column in columns:
        parts = [row[column.name] for row in rows if row.get(column.name) is not None]
        found[column.name] = (norm if column.merge == Merge.NORM else sum)(parts) if parts else None
    return found | {"ratio": ratio(found["update"], found["weight"])}


def norm(parts: Iterable[float]) -> float:
    """The L2 norm of the concatenation of tensors with these norms; NaN if one of them is NaN, even if another is
    infinite.
    """
    parts = list(parts)
    return math.nan if any(map(math.isnan, parts)) else math.hypot(*parts)


def total(values: Iterable[float]) -> float:
    """The exact sum; NaN of opposite infinities, infinite beyond the largest float."""
    values = list(values)
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):  # fsum raises on these
        return sum(values)


def ratio(update: float | None, weight: float | None) -> float | None:
    """|dw|/|w|: infinite if weights of 0 changed, NaN if they did not."""
    if update is None or weight is None:
        return None
    if weight == 0:
        return math.nan if update == 0 or math.isnan(update) else math.inf
    return update / weight

"""Merges the values of several rows into those of one, by the rules of their columns. Exact, and free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hookcli.table.column import Column, Merge
from hookcli.table.norms import norm, ratio
from hookcli.table.row import Row


def merged_values(rows: Sequence[Row], columns: Iterable[Column]) -> dict[str, Any]:
    """The values of two or more rows as those of one. A value is None where no row has one, or its rule gives none.

    A norm is merged over rows of one module alone; rows of several modules have none in common.
    """
    values = {
        name: value if all(row.get(name) == value for row in rows) else None for name, value in rows[0].values.items()
    }
    present = {name for row in rows for name in row.values}
    worst = max(rows, key=_excess) if "times" in present else None
    same_place = all(row.fqn == rows[0].fqn for row in rows)
    for column in columns:
        name, rule = column.name, column.merge
        if name not in present or rule == Merge.SAME:
            continue
        if rule == Merge.FIRST:
            values[name] = rows[0].get(name)
        elif rule == Merge.WORST:
            values |= {name: worst.get(name)} if worst else {}
        elif rule == Merge.RATIO:
            values[name] = ratio(values.get("update"), values.get("weight"))
        elif rule != Merge.NORM or same_place:
            parts = [value for row in _counted(rows, rule) if (value := row.get(name)) is not None]
            values[name] = _RULES[rule](parts) if parts else None
    return values


_RULES: Mapping[Merge, Callable[[Sequence[Any]], Any]] = {
    Merge.SUM: sum,
    Merge.ONCE: sum,
    Merge.LEAST: min,
    Merge.MOST: max,
    Merge.NORM: norm,
}


def _counted(rows: Sequence[Row], rule: Merge) -> Sequence[Row]:
    """The rows that count: of a module that was called several times the first, if the rule counts it once."""
    if rule != Merge.ONCE:
        return rows
    return [*{origin(row): row for row in reversed(rows) if row.get("params") is not None}.values()]


def origin(row: Row) -> str:
    """The name that a row had before its block was folded."""
    return str(row.get("origin", row.fqn))


def _excess(row: Row) -> tuple[bool, float]:
    return bool(row.get("beyond")), row.get("times") or 0.0

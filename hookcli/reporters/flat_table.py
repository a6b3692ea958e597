"""Reports as one table: a line per row, and each value as a number, a flag or text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hookcli.table import Report, Row, strict
from hookcli.table.formatting import shape
from hookcli.table.grouping import View


def cells(row: Row, report: Report, view: View) -> dict[str, Any]:
    """Return the row's values by column; only the report's columns if the view chooses some."""
    declared = {column.name: row.get(column.name) for column in report.columns}
    return declared if view.columns else {**declared, **report.flat(row)}


def names(declared: Iterable[str], used: Iterable[str]) -> list[str]:
    """Return the table's columns: those that the reports declare, in their order, then others that rows have."""
    declared = list(dict.fromkeys(declared))
    return [*declared, *sorted(set(used) - set(declared))]


def single(name: str, value: object) -> Any:
    """Return the value as a number, a flag or text: shapes as 1x3x224x224, other lists as words, mappings as JSON."""
    if isinstance(value, Mapping):
        return json.dumps(strict(value), ensure_ascii=False)
    if not isinstance(value, (list, tuple)):
        return value
    if name.endswith("shape"):
        return shape(value)
    return " ".join("-" if item is None else str(item) for item in value)

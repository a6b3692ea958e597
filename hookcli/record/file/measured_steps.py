"""Reads reports of many ranks from packed lines straight into arrays, without an object for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hookcli.record.file.packing import Layout, unpack_columns, unpack_layout
from hookcli.report import STATS_KEYS, Report
from hookcli.report.files import sound
from hookcli.report.measured_rows import MeasuredRows

_Columns = Mapping[str, Sequence[Any]]


@dataclass
class SharedRows:
    """The layouts of several ranks, by their text, and the values of rows besides statistics, by probe."""

    _layouts: dict[str, Layout] = field(default_factory=dict)
    _values: dict[str, tuple[_Columns, Sequence[Mapping[str, Any]]]] = field(default_factory=dict)

    def layout(self, text: str) -> Layout:
        """The layout of a line. Raises as `unpack_layout` does."""
        if text not in self._layouts:
            self._layouts[text] = unpack_layout(text)
        return self._layouts[text]

    def reports(self, text: str, layout: Callable[[int], Layout]) -> tuple[Report, ...]:
        """The reports of a packed line; rows that all have statistics are MeasuredRows. Raises as `unpack` does."""
        return tuple(self._report(*found) for found in unpack_columns(text, layout))

    def _report(self, layout: Layout, head: Mapping[str, Any], columns: _Columns) -> Report:
        if not all(set(STATS_KEYS) <= set(keys) and "hist" not in keys for keys in layout.keys):
            return sound(Report.from_dict({**head, "rows": layout.rows(columns)}))
        import numpy as np

        figures = np.array([columns[key] for key in STATS_KEYS], np.float64).T
        rest = {key: column for key, column in columns.items() if key not in STATS_KEYS}
        known = self._values.get(head["probe"])
        report = Report.from_dict({**head, "rows": []})
        if known is not None and known[0] == rest:
            return replace(report, rows=MeasuredRows(known[1], figures))
        found = sound(Report.from_dict({**head, "rows": layout.rows(columns)}))
        values = [row.values for row in found.rows]
        self._values.setdefault(head["probe"], (rest, values))
        return replace(report, rows=MeasuredRows(values, figures))

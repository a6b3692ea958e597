"""Comma-separated values: every row, raw numbers, shapes as 1x3x224x224."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from hookcli.reporters import flat_table
from hookcli.reporters.base import Reporter
from hookcli.table import Report, strict
from hookcli.table.grouping import View
from hookcli.table.printable import printable


class CsvReporter(Reporter):
    """One header and a line per row. If reports differ in model or probe, columns `model` and `probe` come first."""

    suffixes = (".csv",)

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a header and a line per row."""
        reports = [*map(printable, reports)]
        declared = [column.name for report in reports for column in report.columns]
        marks = [mark for mark in ("model", "probe") if mark not in declared]
        which = [mark for mark in marks if len({getattr(report, mark) for report in reports}) > 1]
        rows = [
            ([getattr(report, mark) for mark in which], flat_table.cells(row, report, view))
            for report in reports
            for row in report.rows
        ]
        names = flat_table.names(declared, (name for _, row in rows for name in row))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(_guarded, [*which, *names]))
        for leading, row in rows:
            writer.writerow([*map(_guarded, leading), *(_plain(name, row.get(name)) for name in names)])
        return text.getvalue()


def _plain(name: str, value: object) -> Any:
    single = flat_table.single(name, value)
    words = isinstance(value, str) or (isinstance(value, (list, tuple)) and any(isinstance(v, str) for v in value))
    return _guarded(single) if words else "" if single is None else strict(single)


def _guarded(text: str) -> str:
    """Quote text that a spreadsheet would take for a formula, which may run commands."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text

"""Comma-separated values: every row, raw numbers, shapes as 1x3x224x224."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from hookcli.report import Report, strict
from hookcli.report.formatting import printable, shape
from hookcli.report.grouping import View
from hookcli.reporters.base import Reporter


class CsvReporter(Reporter):
    """One header and a line per row. If reports differ in model or probe, columns `model` and `probe` come first."""

    suffixes = (".csv",)

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a header and a line per row."""
        reports = [printable(report) for report in reports]
        names = list(dict.fromkeys(column.name for report in reports for column in report.columns))
        marks = {"model": [report.model for report in reports], "probe": [report.probe for report in reports]}
        which = [mark for mark, values in marks.items() if len(set(values)) > 1 and mark not in names]
        rows = [([getattr(report, mark) for mark in which], row.flat()) for report in reports for row in report.rows]
        if not view.columns:
            names += sorted({key for _, row in rows for key in row} - set(names))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(_guarded, [*which, *names]))
        for told, row in rows:
            writer.writerow([*map(_guarded, told), *(_plain(name, row.get(name)) for name in names)])
        return text.getvalue()


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        if name.endswith("shape"):
            return shape(value)
        joined = " ".join("-" if v is None else str(v) for v in value)
        return _guarded(joined) if any(isinstance(v, str) for v in value) else joined
    if isinstance(value, (str, Mapping)):
        return _guarded(str(value))
    return "" if value is None else strict(value)


def _guarded(text: str) -> str:
    """Quote text that a spreadsheet would take for a formula, which may run commands."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text

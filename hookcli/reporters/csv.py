"""Comma-separated values: every row, raw numbers, shapes as 1x3x224x224."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from hookcli.fold import View
from hookcli.present import shape
from hookcli.report import Report, strict


class CsvReporter:
    """One header and a line per row. Of several reports, a first column `probe` tells which."""

    suffixes = (".csv",)

    def render(self, reports: Sequence[Report], view: View) -> str:
        names = list(dict.fromkeys(column.name for report in reports for column in report.columns))
        rows = [(report.probe, row.flat()) for report in reports for row in report.rows]
        if not view.columns:
            names += sorted({key for _, row in rows for key in row} - set(names))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        several = len(reports) > 1
        writer.writerow([*(["probe"] if several else []), *names])
        for probe, row in rows:
            writer.writerow([*([probe] if several else []), *(_plain(name, row.get(name)) for name in names)])
        return text.getvalue()


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return shape(value) if name.endswith("shape") else " ".join("-" if v is None else str(v) for v in value)
    return "" if value is None else strict(value)

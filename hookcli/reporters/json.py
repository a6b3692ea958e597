"""Strict JSON: every row, raw numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hookcli.reporters.base import Reporter
from hookcli.table import Report, document
from hookcli.table.grouping import View
from hookcli.table.strict_json import document_text


class JsonReporter(Reporter):
    """One strict JSON document with one row per line, easy to grep and diff."""

    suffixes = (".json",)
    then = "`hookcli show {path}` shows it"
    error: Mapping[str, object] | None = None  # that ended the command

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write the reports as one JSON document; rows have only the columns that were chosen."""
        whole = document(reports, self.error)
        for report in whole["reports"] if view.columns else ():
            names = [column["name"] for column in report["columns"]]
            report["rows"] = [{name: row.get(name) for name in names} for row in report["rows"]]
        return document_text(whole)

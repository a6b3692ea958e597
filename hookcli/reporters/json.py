"""Strict JSON: every row, raw numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookcli.reporters.base import Reporter
from hookcli.table import Report, document
from hookcli.table.grouping import View
from hookcli.table.strict_json import document_text


class JsonReporter(Reporter):
    """One strict JSON document with one row per line, easy to grep and diff."""

    suffixes = (".json",)

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write the reports as one JSON document."""
        return document_text(_chosen(document(reports), view))


def _chosen(document: dict[str, Any], view: View) -> dict[str, object]:
    """Reduce rows to the chosen columns."""
    if view.columns:
        for report in document["reports"]:
            names = [column["name"] for column in report["columns"]]
            report["rows"] = [{name: row.get(name) for name in names} for row in report["rows"]]
    return document

"""Strict JSON: every row, raw numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hookcli.report import Report, document
from hookcli.report.grouping import View
from hookcli.reporters.base import Reporter
from hookcli.system.escaping import visible_json


class JsonReporter(Reporter):
    """One strict JSON document with one row per line, easy to grep and diff."""

    suffixes = (".json",)

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write the reports as one JSON document."""
        return visible_json(_lines(_chosen(document(reports), view), 0)) + "\n"


def _chosen(document: dict[str, Any], view: View) -> dict[str, Any]:
    """Reduce rows to the chosen columns."""
    if view.columns:
        for report in document["reports"]:
            names = [column["name"] for column in report["columns"]]
            report["rows"] = [{name: row.get(name) for name in names} for row in report["rows"]]
    return document


def _lines(value: Any, level: int) -> str:
    """Write nested containers over several lines, flat ones on one line."""
    pad = "  " * (level + 1)
    items = value.values() if isinstance(value, dict) else value
    deep = isinstance(value, (dict, list)) and any(isinstance(i, (dict, list)) for i in items) and level < 3
    if not deep:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    if isinstance(value, dict):
        inner = [f"{pad}{json.dumps(str(k), ensure_ascii=False)}: {_lines(v, level + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner) + "\n" + "  " * level + "}"
    inner = [pad + _lines(item, level + 1) for item in value]
    return "[\n" + ",\n".join(inner) + "\n" + "  " * level + "]"

"""HTML: one self-contained page that folds, sorts, filters and charts, and a static table for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookcli.report import SCHEMA, Report, document
from hookcli.report.grouping import View
from hookcli.reporters.base import Reporter
from hookcli.reporters.html.page import page
from hookcli.reporters.html.static_table import static_table


class HtmlReporter(Reporter):
    """One page with a tab per report, without any other file; text without scripts where a browser runs none."""

    suffixes = (".html", ".htm")
    for_people = True
    with_figures = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a page."""
        return page(_payload(reports), view)

    def fragment(self, report: Report, view: View) -> str:
        """Write a table without a page around it, as notebooks show it."""
        return static_table(report, view)


def _payload(reports: Sequence[Report]) -> dict[str, Any]:
    """The payload of a page. Differences are of a comparison, whose sides they join; findings beside figures are of a
    model, whose reports are shown as one.
    """
    probes = {report.probe for report in reports}
    kind = "diff" if "diff" in probes else "model" if "check" in probes and len(probes) > 1 else "reports"
    titled = [report for report in reports if report.probe == "diff" or kind != "diff"]
    title = ", ".join(dict.fromkeys(_title(report, kind) for report in titled))
    return {"schema": SCHEMA, "kind": kind, "title": title, "reports": document(reports)["reports"]}


def _title(report: Report, kind: str) -> str:
    """The part of a page's title that a report has."""
    a, b = (report.meta.get(side) or {} for side in ("a", "b"))
    if kind == "diff" and "record" in a:
        return f"{a['record']} → {b['record']}"
    return f"{report.probe}: {report.model}" if kind == "reports" else report.model

"""HTML: one self-contained page that folds, sorts, filters and charts, and a static table for notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.report import Report, document
from hookcli.report.grouping import View
from hookcli.reporters.base import Reporter
from hookcli.reporters.html.page import page
from hookcli.reporters.html.static_table import static_table


class HtmlReporter(Reporter):
    """One page with a tab per report, without any other file; text without scripts where a browser runs none."""

    suffixes = (".html", ".htm")
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a page."""
        title = ", ".join(dict.fromkeys(f"{report.probe}: {report.model}" for report in reports))
        payload = {"schema": 1, "kind": "reports", "title": title, "reports": document(reports)["reports"]}
        return page(payload, view)

    def fragment(self, report: Report, view: View) -> str:
        """Write a table without a page around it, as notebooks show it."""
        return static_table(report, view)

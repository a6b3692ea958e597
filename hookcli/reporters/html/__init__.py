"""HTML: one self-contained page that folds, sorts, filters and charts, and a static table for notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.reporters.base import Reporter
from hookcli.reporters.html.frame import framed
from hookcli.reporters.html.page import page
from hookcli.table import SCHEMA, Report, document
from hookcli.table.grouping import View


class HtmlReporter(Reporter):
    """One page with a tab per report, without any other file; text without scripts where a browser runs none."""

    suffixes = (".html", ".htm")
    for_people = True
    with_figures = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a page."""
        return page(_payload(reports), view)

    def frame(self, reports: Sequence[Report], view: View | None = None) -> str:
        """Write a page in a frame, as notebooks show it."""
        view = view or View()
        return framed(page(_payload(reports), view, compact=True), reports, view)


def _payload(reports: Sequence[Report]) -> dict[str, object]:
    """The payload of a page. Differences are of a comparison, whose sides they join; findings beside figures are of a
    model, whose reports are shown as one.
    """
    probes = {report.probe for report in reports}
    kind = "diff" if "diff" in probes else "model" if "check" in probes and len(probes) > 1 else "reports"
    titles = _compared(reports) if kind == "diff" else [report.model for report in reports]
    if kind == "reports":
        titles = [f"{report.probe}: {report.model}" for report in reports]
    title = ", ".join(dict.fromkeys(titles))
    return {"schema": SCHEMA, "kind": kind, "title": title, "reports": document(reports)["reports"]}


def _compared(reports: Sequence[Report]) -> list[str]:
    """The names of what is compared: records, else models."""
    metas = [report.meta for report in reports if "record" in report.meta.get("a", {})]
    records = [f"{meta['a']['record']} → {meta['b']['record']}" for meta in metas]
    return records or [report.model for report in reports if report.probe == "diff"]

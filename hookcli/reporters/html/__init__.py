"""HTML: one self-contained page that folds, sorts, filters and charts, and a static table for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from hookcli.reporters.base import Reporter
from hookcli.reporters.html.page import page
from hookcli.reporters.html.static_table import static_table
from hookcli.system.escaping import visible
from hookcli.table import SCHEMA, Report, document
from hookcli.table.columns.recorded import RUNS_PROBE
from hookcli.table.grouping import View

_PLAIN = "hookcli-plain"
_AROUND, _ROW = 320, 24  # pixels of height: of everything around a table, and of each row
_LEAST, _MOST = 400, 720
_PLAIN_ROWS = 60  # of each report
_FRAME = """\
<style>.{plain} {{ display: none }}</style>
<iframe title="{title}" sandbox="allow-scripts allow-downloads" srcdoc="{page}"
  style="width: 100%; height: {height}px; min-height: 200px; border: 0; resize: vertical; display: block"></iframe>
<div class="{plain}">
{tables}
</div>
"""


class HtmlReporter(Reporter):
    """One page with a tab per report, without any other file; text without scripts where a browser runs none."""

    suffixes = (".html", ".htm")
    for_people = True
    with_figures = True
    then = "open it in a browser"

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a page."""
        return page(_payload(reports), view)

    def frame(
        self, reports: Sequence[Report], view: View | None = None, payload: Mapping[str, object] | None = None
    ) -> str:
        """Write a page in a frame, as notebooks show it, and static tables of its reports in place of it.

        The page's scripts run in the frame alone: it has a separate origin, and can reach neither the notebook nor a
        network. A notebook that is not trusted, and sites that show notebooks, take both the frame and the style away
        that hides the tables. `payload` is that of the page, if it is not the one of the reports.
        """
        view = view or View()
        text = page(payload or _payload(reports), view, compact=True)
        rows = max((len(report.rows) for report in reports), default=0) if len(reports) == 1 else _MOST
        plain = View(depth=view.depth, columns=view.columns, sort=view.sort, height=_PLAIN_ROWS, python=view.python)
        return _FRAME.format(
            plain=_PLAIN,
            title=escape(visible(", ".join(dict.fromkeys(f"{report.probe} of {report.model}" for report in reports)))),
            page=text.replace("&", "&amp;").replace('"', "&quot;"),
            height=min(max(_AROUND + _ROW * rows, _LEAST), _MOST),
            tables="\n".join(static_table(report, plain) for report in reports),
        )


def _payload(reports: Sequence[Report]) -> dict[str, object]:
    """The payload of a page. Differences are of a comparison, whose sides they join; findings beside figures are of a
    model, whose reports are shown as one.
    """
    probes = {report.probe for report in reports}
    kind = "diff" if "diff" in probes else "model" if "check" in probes and len(probes) > 1 else "reports"
    titles = [f"{report.probe}: {report.model}" if kind == "reports" else report.model for report in reports]
    if kind == "diff":  # of records, else of models
        metas = [report.meta for report in reports if "record" in report.meta.get("a", {})]
        records = [f"{meta['a']['record']} → {meta['b']['record']}" for meta in metas]
        titles = records or [report.model for report in reports if report.probe == "diff"]
    if kind == "reports" and len({report.model for report in reports}) == 1 < len(reports):
        titles = [f"{reports[0].model}: {', '.join(dict.fromkeys(report.probe for report in reports))}"]
    if RUNS_PROBE in probes:
        titles = [name for report in reports for name in report.meta.get("against", {}).values()]
    title = ", ".join(dict.fromkeys(titles))
    return {"schema": SCHEMA, "kind": kind, "title": title, "reports": document(reports)["reports"]}

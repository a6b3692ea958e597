"""HTML: one self-contained page that folds, sorts, filters and charts, and a static table for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import chain

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
        that hides the tables. `payload`: the page's, where it isn't the reports' own.
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
    probes = dict.fromkeys(report.probe for report in reports)
    models = dict.fromkeys(report.model for report in reports)
    kind = "reports"
    titles: Iterable[str] = (f"{report.probe}: {report.model}" for report in reports)
    if "diff" in probes:  # of records, else of models
        kind = "diff"
        records = [
            f"{report.meta['a']['record']} → {report.meta['b']['record']}"
            for report in reports
            if "record" in report.meta.get("a", {})
        ]
        titles = records or (report.model for report in reports if report.probe == "diff")
    elif "check" in probes and len(probes) > 1:
        kind, titles = "model", models
    elif len(models) == 1 < len(reports):
        titles = [f"{reports[0].model}: {', '.join(probes)}"]
    if RUNS_PROBE in probes:
        titles = chain.from_iterable(report.meta.get("against", {}).values() for report in reports)
    title = ", ".join(dict.fromkeys(titles))
    return {"schema": SCHEMA, "kind": kind, "title": title, "reports": document(reports)["reports"]}

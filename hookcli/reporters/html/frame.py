"""The page in a frame, for notebooks, which show HTML within their own page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hookcli.reporters.html.static_table import static_table
from hookcli.system.escaping import visible
from hookcli.table import Report
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


def framed(page: str, reports: Sequence[Report], view: View) -> str:
    """Return a frame with the page, and static tables of its reports in place of it.

    The page's scripts run in the frame alone: it has a separate origin, and can reach neither the notebook nor a
    network. A notebook that is not trusted, and sites that show notebooks, take both the frame and the style away that
    hides the tables.
    """
    rows = max((len(report.rows) for report in reports), default=0) if len(reports) == 1 else _MOST
    plain = View(depth=view.depth, columns=view.columns, sort=view.sort, height=_PLAIN_ROWS, python=view.python)
    return _FRAME.format(
        plain=_PLAIN,
        title=escape(visible(", ".join(dict.fromkeys(f"{report.probe} of {report.model}" for report in reports)))),
        page=page.replace("&", "&amp;").replace('"', "&quot;"),
        height=min(max(_AROUND + _ROW * rows, _LEAST), _MOST),
        tables="\n".join(static_table(report, plain) for report in reports),
    )

"""A table in HTML: for notebooks, and as a page that needs no other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape

from hookcli.report import Report, formatting
from hookcli.report.grouping import View
from hookcli.reporters import footer
from hookcli.reporters.base import Reporter
from hookcli.reporters.findings import Entry
from hookcli.reporters.table_cells import Table, tabulated
from hookcli.system.escaping import visible

_LINES = 200  # more rows than these are grouped; the table scrolls
# Colours are the page's own, and lines and dim text are shares of them, so that it reads on dark and on light.
_STYLE = """\
.hookcli { font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; color: inherit; margin: 0 0 1em }
.hookcli-rows { max-height: 36em; overflow: auto; width: fit-content; max-width: 100% }
.hookcli table { border-collapse: collapse; border: 0; margin: 0; font: inherit; color: inherit }
.hookcli th, .hookcli td { padding: 1px 1.2em 1px 0; border: 0; text-align: right; white-space: pre;
  background: none; color: inherit; font-weight: normal }
.hookcli th { font-weight: 600; border-bottom: 1px solid color-mix(in srgb, currentcolor 40%, transparent);
  vertical-align: bottom }
.hookcli tbody tr:hover { background: color-mix(in srgb, currentcolor 9%, transparent) }
.hookcli .left { text-align: left }
.hookcli .mark, .hookcli .error { color: #d33; font-weight: 600 }
.hookcli .warning { color: #b80 }
.hookcli p { margin: .15em 0; opacity: .72; white-space: pre-wrap }
.hookcli p.above { font-weight: 600; opacity: 1 }
.hookcli p.finding { opacity: 1 }
"""
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>:root {{ color-scheme: light dark }}</style>
</head>
<body>
{body}
</body>
</html>
"""


class HtmlReporter(Reporter):
    """A page with a table per report, which reads on dark and on light backgrounds."""

    suffixes = (".html", ".htm")
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a page."""
        title = ", ".join(dict.fromkeys(f"{report.probe}: {report.model}" for report in reports))
        shown = [_fragment(report, view) for report in reports]
        return _PAGE.format(title=escape(visible(title)), body="\n".join(shown))

    def fragment(self, report: Report, view: View) -> str:
        """Write a table without a page around it, as notebooks show it."""
        return _fragment(report, view)


def _fragment(report: Report, view: View) -> str:
    view = replace(view, width=None, height=view.height or _LINES, color=False, bars=False)
    report = formatting.printable(report)
    table = tabulated(report, view)
    above = [f'<p class="above">{escape(line)}</p>' for line in table.above.splitlines()]
    found = [line for entry in table.entries for line in _finding(entry)]
    below = [f"<p>{escape(line)}</p>" for line in (*table.below, footer.next_line([report])) if line]
    parts = [f"<style>{_STYLE}</style>", *above, *found, *(_rows(table) if table.columns else []), *below]
    return "\n".join(['<div class="hookcli">', *parts, "</div>"])


def _finding(entry: Entry) -> Iterator[str]:
    first, indent = entry.heads()
    yield f'<p class="finding"><span class="{escape(entry.severity)}">{escape(first)}</span>{escape(entry.said)}</p>'
    yield from (f"<p>{escape(indent + line)}</p>" for line in entry.below)


def _rows(table: Table) -> list[str]:
    names = [column.name for column in table.columns]
    kinds = [
        "left mark" if name == "mark" else "left" if left else "" for name, left in zip(names, table.left, strict=True)
    ]
    marked = [f' class="{kind}"' if kind else "" for kind in kinds]
    titles = [column.title for column in table.columns]
    lines = ["".join(f"<td{k}>{escape(t)}</td>" for k, t in zip(marked, line, strict=True)) for line in table.cells]
    head = "".join(f"<th{kind}>{escape(title)}</th>" for kind, title in zip(marked, titles, strict=True))
    body = [f"<tr>{line}</tr>" for line in lines]
    return [
        f'<div class="hookcli-rows"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>',
        *body,
        "</tbody></table></div>",
    ]

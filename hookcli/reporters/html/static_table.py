"""A table in HTML that needs no script: for notebooks, and for browsers that run none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from html import escape

from hookcli.reporters import footer
from hookcli.reporters.table_cells import Table, tabulated
from hookcli.table import Report
from hookcli.table.grouping import View
from hookcli.table.printable import printable

_LINES = 200  # more rows than these are grouped; the table scrolls
# Colours are the page's own, and lines and dim text are shares of them, so that it reads on dark and on light.
STYLE = """\
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


def static_table(report: Report, view: View, *, style: bool = True) -> str:
    """Write the report's table as the terminal shows it, grouped to _LINES rows at most; `style` adds STYLE to it."""
    view = replace(view, width=None, height=view.height or _LINES, color=False, bars=False)
    report = printable(report)
    table = tabulated(report, view)
    above = [f'<p class="above">{escape(line)}</p>' for line in table.above.splitlines()]
    findings = []
    for entry in table.entries:
        first, indent = entry.heads()
        head = f'<span class="{escape(entry.severity)}">{escape(first)}</span>'
        findings.append(f'<p class="finding">{head}{escape(entry.text)}</p>')
        findings += [f"<p>{escape(indent + line)}</p>" for line in entry.below]
    below = [f"<p>{escape(line)}</p>" for line in (*table.below, footer.next_line([report])) if line]
    styles = [f"<style>{STYLE}</style>"] if style else []
    parts = [*styles, *above, *findings, *(_rows(table) if table.columns else []), *below]
    return "\n".join(['<div class="hookcli">', *parts, "</div>"])


def _rows(table: Table) -> list[str]:
    of_mark = ' class="left mark"'
    of_words = ' class="left"'
    columns = zip(table.columns, table.left, strict=True)
    looks = [of_mark if column.name == "mark" else of_words if left else "" for column, left in columns]

    def row(tag: str, texts: Iterable[str]) -> str:
        cells = (f"<{tag}{look}>{escape(text)}</{tag}>" for look, text in zip(looks, texts, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    head = row("th", (column.title for column in table.columns))
    body = []
    for line, remark in zip(table.cells, table.remarks or [""] * len(table.cells), strict=True):
        body += [row("td", line)]
        body += [f"<tr><td{of_mark} colspan={len(line)}>{escape(remark)}</td></tr>"] if remark else []
    return [f'<div class="hookcli-rows"><table>\n<thead>{head}</thead>\n<tbody>', *body, "</tbody></table></div>"]

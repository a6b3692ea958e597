"""A Markdown table, for job summaries and issues."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hookcli.reporters import footer, largest, table_columns
from hookcli.reporters.base import SCREEN, Reporter
from hookcli.table import Report, formatting
from hookcli.table.grouping import View, for_people
from hookcli.table.printable import printable
from hookcli.table.screen import fitted

_BEFORE_PUNCTUATION = re.compile(r"\\(?=[!-/:-@\[-`{-~]|$)")
_ENTITY = re.compile(r"&(?=#?\w+;)")


class MarkdownReporter(Reporter):
    """A Markdown table, grouped like the terminal's table."""

    suffixes = (".md", ".markdown")
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a heading, a line about the run, and a table per report."""
        return "\n".join(_render(report, view) for report in reports)


def _render(report: Report, view: View) -> str:
    report = for_people(printable(report))
    first = largest.first_lines(report, view)
    if view.depth is None and not view.sort:
        report = fitted(report, SCREEN)
    columns = table_columns.visible(report, view)
    cells = [
        [
            _escaped(column.title or " "),
            ":---" if table_columns.reads_left(report, column) else "---:",
            *(_escaped(formatting.cell(row, column)) for row in report.rows),
        ]
        for column in columns
    ]
    table = ["| " + " | ".join(line) + " |" for line in zip(*cells, strict=True)]
    notes = [footer.totals_line(footer.without_headlines(report)), *footer.remarks(report)]
    notes += table_columns.notes(report, columns)
    if report.skipped:
        notes.append(f"Not measured: {footer.skipped_line(report)}")
    below = [f"{_escaped(line)}  " for line in "\n".join(notes).split("\n") if line]
    above = [f"### {_escaped(f'{report.probe}: {report.model}')}"]
    above += [f"**{_escaped(line)}**" for line in first]
    above.append(_escaped(footer.run_line(report)))
    return "\n".join([*(f"{line}\n" for line in above if line), *([*table, ""] if report.rows else []), *below, ""])


def _escaped(text: str) -> str:
    """Escape text that Markdown would turn into code, a link, an image or a tag."""
    text = _BEFORE_PUNCTUATION.sub(r"\\\\", text)
    for mark in ("|", "`", "]("):
        text = text.replace(mark, f"\\{mark}")
    return _ENTITY.sub("&amp;", text).replace("<", "&lt;").replace(">", "&gt;")

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
        texts = []
        for report in map(for_people, map(printable, reports)):
            first = largest.first_lines(report, view)
            shown = fitted(report, SCREEN) if view.depth is None and not view.sort else report
            columns = table_columns.visible(shown, view)
            cells = [
                [
                    _escaped(column.title or " "),
                    ":---" if table_columns.reads_left(shown, column) else "---:",
                    *(_escaped(formatting.cell(row, column)) for row in shown.rows),
                ]
                for column in columns
            ]
            above = [f"### {_escaped(f'{shown.probe}: {shown.model}')}"]
            above += [f"**{_escaped(line)}**" for line in first]
            lines = [f"{line}\n" for line in filter(None, [*above, _escaped(footer.run_line(shown))])]
            if shown.rows:
                lines += ["| " + " | ".join(line) + " |" for line in zip(*cells, strict=True)]
                lines.append("")
            notes = [footer.totals_line(footer.without_headlines(shown)), *footer.remarks(shown)]
            notes += table_columns.notes(shown, columns)
            if shown.skipped:
                notes.append(f"Not measured: {footer.skipped_line(shown)}")
            lines += [f"{_escaped(line)}  " for line in "\n".join(notes).split("\n") if line]
            texts.append("\n".join([*lines, ""]))
        return "\n".join(texts)


def _escaped(text: str) -> str:
    """Escape text that Markdown would turn into code, a link, an image or a tag."""
    text = _BEFORE_PUNCTUATION.sub(r"\\\\", text)
    for mark in ("|", "`", "]("):
        text = text.replace(mark, f"\\{mark}")
    return _ENTITY.sub("&amp;", text).replace("<", "&lt;").replace(">", "&gt;")

"""The table for people: fits a terminal of 80 columns or more, and groups deep models to fit a screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len

from hookcli.reporters.base import PIPE, Reporter
from hookcli.reporters.footer import next_line
from hookcli.reporters.table_cells import Table, tabulated
from hookcli.system.escaping import visible
from hookcli.system.streams import is_terminal, terminal_size
from hookcli.table import Report
from hookcli.table.grouping import View, parse_depth, shown
from hookcli.table.printable import printable


class TableReporter(Reporter):
    """A table per report: a line about the run, the rows, and totals; drawn by Rich on a terminal."""

    suffixes = (".txt",)
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a table per report."""
        tables = [tabulated(printable(report), view) for report in reports]
        if view.width is not None or view.color or any(table.width > PIPE for table in tables):
            from hookcli.reporters.rich_table import draw  # imports Rich, which is slow

            text = draw(tables, view)
        else:
            text = "\n".join("\n".join(_plain(table)) + "\n" for table in tables)
        then = visible(next_line(reports))
        return "".join(line.rstrip() + "\n" for line in [*text.splitlines(), *filter(None, [then])])

    def asked(
        self, report: Report, *, depth: float | str | None, columns: str | Sequence[str], sort: str | None
    ) -> tuple[Report, View]:
        """The report and the view that a program asks for. Raises UsageError for unknown columns and depths."""
        names = columns.split(",") if isinstance(columns, str) else columns
        view = View(
            depth=parse_depth(None if depth is None else str(depth), "depth"),
            columns=[name for text in names if (name := text.strip())],
            sort=sort,
            python=True,
        )
        return shown(report, view), view

    def printed(self, report: Report, view: View) -> str:
        """Write one report for `print`: as wide as the terminal, without colour codes since text may go anywhere."""
        size = terminal_size(sys.stdout) if is_terminal(sys.stdout) else None
        view = replace(view, width=size.columns, height=size.lines, bars=True) if size else view
        return self.render([report], view).rstrip("\n")


def _plain(table: Table) -> list[str]:
    """Write a table that needs no fitting and no colour."""
    rule = "─" * table.width
    lines = [[column.title for column in table.columns], *table.cells]
    padded = [
        "  ".join(
            text + pad if left else pad + text
            for text, width, left in zip(line, table.widths, table.left, strict=True)
            for pad in [" " * (width - cell_len(text))]
        )
        for line in lines
    ]
    above = [table.above] if table.above else []
    for entry in table.entries:
        first, indent = entry.heads()
        above += [f"{first}{entry.said}", *(f"{indent}{line}" for line in entry.below)]
    remarks = table.remarks or [""] * len(table.cells)
    rows = [text for pair in zip(padded[1:], remarks, strict=True) for text in pair if text]
    return [*above, *([padded[0], rule, *rows] if table.columns else []), *table.below]

"""The table for people: fits a terminal of 80 columns or more, and groups deep models to fit a screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from hookcli.reporters.base import Reporter
from hookcli.reporters.footer import next_line
from hookcli.reporters.table_text import table_text
from hookcli.system.escaping import visible
from hookcli.system.streams import is_terminal, terminal_size
from hookcli.table import Report
from hookcli.table.grouping import View, parse_depth, shown


class TableReporter(Reporter):
    """A table per report: a line about the run, the rows, and totals; drawn by Rich on a terminal."""

    suffixes = (".txt",)
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a table per report."""
        then = visible(next_line(reports))
        return table_text(reports, view) + (f"{then}\n" if then else "")

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

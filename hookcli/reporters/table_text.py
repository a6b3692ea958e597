"""Tables as text: drawn by Rich where they must fit or have colours, else plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len

from hookcli.reporters.base import PIPE
from hookcli.reporters.table_cells import Table, tabulated
from hookcli.table import Report
from hookcli.table.formatting import counted
from hookcli.table.grouping import View
from hookcli.table.printable import printable

_ALL = " (--depth all shows all)"


def table_text(reports: Sequence[Report], view: View) -> str:
    """Write a table per report."""
    tables = _fitting(reports, [tabulated(printable(report), view) for report in reports], view)
    if view.width is not None or view.color or any(table.width > PIPE for table in tables):
        from hookcli.reporters.rich_table import draw  # imports Rich, which is slow

        text = draw(tables, view)
    else:
        text = "\n".join("\n".join(_plain(table)) + "\n" for table in tables)
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def _fitting(reports: Sequence[Report], tables: Sequence[Table], view: View) -> Sequence[Table]:
    """The tables without those of the first step in which two runs differ, if a screen has no room for them.

    The one above says so: the runs' verdict is in its first line, which would leave the screen.
    """
    of_runs = [any(column.name == "loss_a" for column in report.columns) for report in reports]
    lines = sum(table.lines(view.width) for table in tables)
    if not view.height or view.depth is not None or not any(of_runs) or lines <= view.height:
        return tables
    fitting: list[Table] = []
    for report, table, compares in zip(reports, tables, of_runs, strict=True):
        if compares or not fitting:
            fitting.append(table)
        else:
            *below, last = fitting[-1].below
            told = f"{report.model}: {counted(len(report.rows), 'row')}{_ALL}"
            both = f"{last.removesuffix(_ALL)}, {told}"
            joined = last.endswith(_ALL) and cell_len(both) <= (view.width or 0)
            fitting[-1] = replace(fitting[-1], below=[*below, both] if joined else [*below, last, told])
    return fitting


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
        above += [f"{first}{entry.text}", *(f"{indent}{line}" for line in entry.below)]
    remarks = table.remarks or [""] * len(table.cells)
    rows = [text for pair in zip(padded[1:], remarks, strict=True) for text in pair if text]
    return [*above, *([padded[0], rule, *rows] if table.columns else []), *table.below]

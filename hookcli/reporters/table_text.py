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
    """The tables that a screen has room for, so that the first line of all stays on it; a line below names the others.

    Of two runs it is that on the runs, whose verdict says what the first step in which they differ is; of the models
    and phases of a record those with faults come first.
    """
    of_runs = [report.has_column("loss_a") for report in reports]
    of_steps = all(report.probe == "run" for report in reports)
    lines = sum(table.lines(view.width) for table in tables)
    if not view.height or view.depth is not None or not (any(of_runs) or of_steps) or lines <= view.height:
        return tables
    fitting, left_out, room = list[Table](), list[str](), view.height
    both = zip(reports, tables, of_runs, strict=True)
    for report, table, compares in sorted(both, key=lambda one: of_steps and not bool(one[1].alarm)):
        room -= table.lines(view.width)
        if compares or not fitting or (of_steps and room >= 0):
            fitting.append(table)
        else:
            verdict = f"{table.above.partition(chr(10))[0]}; " if table.alarm else ""
            left_out.append(f"{report.model}: {verdict}{counted(len(report.rows), 'row')}")
    if left_out:
        fitting[-1] = replace(fitting[-1], below=_with_others(fitting[-1].below, left_out, view.width or 0))
    return fitting


def _with_others(below: Sequence[str], left_out: Sequence[str], width: int) -> list[str]:
    """The lines below a table, the last of which also names what was left out, if it has room and the same way out."""
    others = ", ".join(left_out) + _ALL
    *lines, last = below or [""]
    both = f"{last.removesuffix(_ALL)}, {others}"
    joined = last.endswith(_ALL) and cell_len(both) <= width
    return [*lines, both] if joined else [*filter(None, [*lines, last]), others]


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

"""The table for eyes: fits a terminal of 80 columns, uses a wider one, and groups deep models to fit a screen."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hookcli import present
from hookcli.fold import View, deepest, depth_of, fitting_depth, fold
from hookcli.report import Column, Report, Row
from hookcli.reporters.base import SCREEN

# A file or pipe has no width to keep to.
_UNBOUNDED = 10_000
_AROUND = 10  # lines around the rows of a table: headings, totals, a prompt


class TableReporter:
    """A Rich table per report, with totals and a line about the run."""

    suffixes = (".txt",)

    def render(self, reports: Sequence[Report], view: View) -> str:
        text = io.StringIO()
        console = Console(
            file=text,
            width=view.width or _UNBOUNDED,
            force_terminal=view.color,
            color_system="auto" if view.color else None,
            highlight=False,
            legacy_windows=False,
        )
        for report in reports:
            _print(console, report, view)
        return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def _print(console: Console, report: Report, view: View) -> None:
    shown = report
    if view.depth is None:
        shown = fold(report, fitting_depth(report, max(view.height - _AROUND, 12) if view.height else SCREEN))
    columns = present.visible(shown, view)
    tree = "depth" in {column.name for column in report.columns} and not view.sort
    cells = [
        [_cell(row, column, tree, present.continues(row, before)) for column in columns]
        for before, row in zip([None, *shown.rows], shown.rows, strict=False)
    ]
    widths = {
        column.name: max([len(column.title), *(line[i].cell_len for line in cells)]) for i, column in enumerate(columns)
    }
    kept = columns if view.columns else present.fitted(columns, widths, view.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    for column in kept:
        left = present.reads_left(shown, column.name)
        table.add_column(column.title, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for line in cells:
        table.add_row(*(text for text, column in zip(line, columns, strict=True) if column in kept))
    console.print(table)
    for note in _footer(report, shown, [c for c in columns if c not in kept]):
        console.print(note, style="dim", soft_wrap=view.width is None)


def _cell(row: Row, column: Column, tree: bool, continued: bool) -> Text:
    if continued and column.name in ("fqn", "type", "input_shape", "params", "macs"):
        return Text("")
    text = present.cell(row, column.name)
    if column.name == "mark":
        return Text(text, style="bold red")
    if column.name == "fqn" and tree:
        return Text("  " * (depth_of(row) - 1)) + Text(text if not row.fqn else text[row.fqn.rfind(".") + 1 :])
    return Text(text, style=_style(row, column.name, text))


def _style(row: Row, name: str, text: str) -> str:
    """Dim what is small or absent."""
    value = row.get(name)
    if text in ("-", "0") or value in (0, None):
        return "dim"
    small = name in present.FIGURES and isinstance(value, float) and math.isfinite(value) and abs(value) < 1e-6
    return "dim" if small or name in ("dtype", "type") else ""


def _footer(report: Report, shown: Report, dropped: Sequence[Column]) -> list[str]:
    lines = [present.totals_line(report)] if report.totals and report.totals.keys() != {"rows"} else []
    lines.append(present.run_line(report))
    if report.skipped:
        lines.append(f"not measured: {present.skipped_line(report)}")
    hints = []
    if len(shown.rows) < len(report.rows):
        level = max((depth_of(row) for row in shown.rows), default=0)
        hints.append(f"{len(report.rows)} rows grouped to depth {level} of {deepest(report)}: --depth all shows each")
    if dropped:
        hints.append(f"no room for {', '.join(c.name for c in dropped)}: --columns chooses")
    return [line for line in [*lines, "; ".join(hints)] if line]

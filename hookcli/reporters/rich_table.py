"""Draws tables with Rich: in colour, fitted to a terminal."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from rich import box, table
from rich.console import Console
from rich.text import Text

from hookcli.report import Row
from hookcli.report.grouping import View
from hookcli.report.stats import FIGURES
from hookcli.reporters.base import PIPE
from hookcli.reporters.table_cells import Table
from hookcli.system.wrapping import wrapped


def draw(tables: Sequence[Table], view: View) -> str:
    """Draw tables one below the other, at most as wide as the view."""
    text = io.StringIO()
    console = Console(
        file=text,
        width=view.width or max([PIPE, *(one.least for one in tables)]),
        force_terminal=view.color,
        color_system="auto" if view.color else None,
        highlight=False,
        legacy_windows=False,
    )
    for number, one in enumerate(tables):
        if one.above:
            above = wrapped(one.above, view.width)
            console.print(Text(("\n" if number else "") + above, style="bold"), soft_wrap=True)
        if one.columns:
            console.print(_drawn(one))
        for line in one.below:
            console.print(Text(wrapped(line, view.width)), style="dim", soft_wrap=True)
    return text.getvalue()


def _drawn(one: Table) -> table.Table:
    """Make Rich's table; headings and text may wrap, figures never do."""
    drawn = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for column, width, left in zip(one.columns, one.widths, one.left, strict=True):
        width_kept = None if left else width
        drawn.add_column(column.title, justify="left" if left else "right", overflow="fold", width=width_kept)
    for row, line in zip(one.rows, one.cells, strict=True):
        drawn.add_row(
            *(
                Text(text, style=_style(row, column.name, text) if text else "")
                for text, column in zip(line, one.columns, strict=True)
            )
        )
    return drawn


def _style(row: Row, name: str, text: str) -> str:
    """Return a cell's style: small or missing figures are dim, severities coloured."""
    value = row.get(name)
    if name == "fqn":
        return ""
    if name == "mark":
        edited = row.get("edited")  # an edit was asked for; any other mark is a warning
        return "cyan" if edited and text == f"edited: {edited}" else "bold red"
    if name == "severity":
        return {"error": "bold red", "warning": "yellow", "info": "cyan"}.get(text, "")
    if text in ("-", "0") or value in (0, None):
        return "dim"
    small = name in FIGURES and isinstance(value, float) and math.isfinite(value) and abs(value) < 1e-6
    return "dim" if small or name in ("dtype", "type") else ""

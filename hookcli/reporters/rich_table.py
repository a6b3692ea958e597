"""Draws tables with Rich: in colour, fitted to a terminal."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from itertools import pairwise

from rich import box, table
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from hookcli.reporters.base import PIPE
from hookcli.reporters.findings import Entry
from hookcli.reporters.table_cells import Table
from hookcli.system.escaping import wrapped
from hookcli.table import Row
from hookcli.table.grouping import View
from hookcli.table.marks import is_fault
from hookcli.table.stats import FIGURES

_SEVERITIES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_ALARMS = {"error": "bold red", "warning": "bold yellow"}  # of the first line
_BLANK = "\N{BRAILLE PATTERN BLANK}"  # Rich strips spaces at the end of a cell
_BREAK = "\x1f"  # where Rich may fold a name: for it a blank, of no width
_PART = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[_/.])(?=[A-Za-z])")


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
            first, _, rest = one.above.partition("\n") if one.alarm else ("", "", one.above)
            lines = [(wrapped(first, view.width), _ALARMS.get(one.alarm, "")), (wrapped(rest, view.width), "bold")]
            above = Text("\n").join(Text(text, style) for text, style in lines if text)
            console.print(Text.assemble("\n" if number else "", above), soft_wrap=True)
        elif number:
            console.print()
        for entry in one.entries:
            _print_entry(console, entry)
        if one.columns:
            _print_rows(console, one)
        for line in one.below:
            console.print(Text(wrapped(line, view.width)), style="dim", soft_wrap=True)
    return text.getvalue().replace(_BLANK, " ").replace(_BREAK, "")


def _print_entry(console: Console, entry: Entry) -> None:
    """Print a finding, its severity in colour and the lines below it dim; lines that wrap are indented."""
    first, indent = entry.heads()
    style = _SEVERITIES.get(entry.severity, "")
    for head, words, below, styles in (
        (first, entry.text, " " * len(first), (style, "")),
        *((indent, line, indent, ("", "dim")) for line in entry.below),
    ):
        lines = Text(words, style=styles[1]).wrap(console, max(console.width - len(head), 1))
        for number, line in enumerate(lines):
            line.rstrip()
            console.print(Text.assemble((below if number else head, styles[0]), line), soft_wrap=True)


def _print_rows(console: Console, one: Table) -> None:
    """Print the rows, each with the remark that belongs below it; no line of a table is wider than its columns."""
    lines = Segment.split_lines(console.render(_drawn(one)))
    for line, after in pairwise([*lines, []]):
        console.print(Segments([*line, Segment.line()]), end="")
        number = _row_of(line)
        if number is not None and number != _row_of(after) and one.remarks and one.remarks[number]:
            remark = one.remarks[number]
            lead = " " * (len(remark) - len(remark.lstrip()) - 2)
            text = wrapped(remark.strip(), console.width - len(lead) - 2)
            style = "bold red" if is_fault(remark) else ""
            console.print(Text("\n".join(f"{lead}  {part}" for part in text.split("\n")), style), soft_wrap=True)


def _row_of(line: Sequence[Segment]) -> int | None:
    """The number of the table's row that a line belongs to."""
    return next((s.style.meta["row"] for s in line if s.style and "row" in s.style.meta), None)


def _drawn(one: Table) -> table.Table:
    """Make Rich's table; headings and text may wrap, figures never do. A bar begins in the gap after its column."""
    drawn = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False, header_style="bold")
    bars = one.bars or [()] * len(one.columns)
    last = len(one.columns) - 1
    for place, (column, width, left) in enumerate(zip(one.columns, one.widths, one.left, strict=True)):
        beside = len(bars[place][0]) if bars[place] else int(place < last)  # a bar, or the gap
        width_kept = None if left else width + beside
        heading = Padding(Text(column.title), (0, beside if width else 0, 0, 0))
        drawn.add_column(heading, justify="left" if left else "right", overflow="fold", width=width_kept)
    for number, (row, line) in enumerate(zip(one.rows, one.cells, strict=True)):
        drawn.add_row(
            *(
                _cell(row, column.name, text, _beside(one, place, number, text))
                for place, (text, column) in enumerate(zip(line, one.columns, strict=True))
            ),
            style=Style(meta={"row": number}),
        )
    return drawn


def _beside(one: Table, place: int, number: int, text: str) -> str:
    """The bar beside a figure, else as many spaces; only where the column has no figures does a bar stand alone."""
    bar = one.bars[place][number] if one.bars and one.bars[place] else " " * (place < len(one.columns) - 1)
    return bar if text or not one.widths[place] else " " * len(bar)


def _cell(row: Row, name: str, text: str, beside: str) -> RenderableType:
    """A cell's text in its style, with a bar or a gap after it. A name that is too long is folded between its words."""
    figure = text.rstrip()
    folding = figure if " " in figure else _PART.sub(_BREAK, figure)
    kept = folding + _BLANK * (len(text) - len(figure))
    styled = Text(kept, style=_style(row, name, figure) if text else "")
    if beside.strip():
        return Text.assemble(styled, (beside.replace(" ", _BLANK), "cyan"))
    return Padding(styled, (0, len(beside), 0, 0))


def _style(row: Row, name: str, text: str) -> str:
    """Return a cell's style: small or missing figures are dim, severities coloured."""
    value = row.get(name)
    if name == "fqn":
        return ""
    if name == "mark":
        edited = row.get("edited")  # an edit was asked for; any other mark is a warning
        style = "" if row.get("unlike") else "bold red"
        return "cyan" if text == f"edited: {edited}" else style
    if name == "loss" and isinstance(value, float) and not math.isfinite(value):
        return "bold red"
    if name == "severity":
        return _SEVERITIES.get(text, "")
    if text in ("-", "0") or value in (0, None):
        return "dim"
    small = name in FIGURES and isinstance(value, float) and abs(value) < 1e-6
    return "dim" if small or name in ("dtype", "type") else ""

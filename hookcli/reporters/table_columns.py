"""Chooses the columns of a table: those that hold information and fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from hookcli.hooks.kinds import HookKind
from hookcli.reporters import bars
from hookcli.reporters.base import PIPE
from hookcli.reporters.footer import by_reason
from hookcli.table import Column, Report, Row, Shown
from hookcli.table.columns import DECLARED, IDENTITY
from hookcli.table.columns.costs import MEMORY_KINDS
from hookcli.table.grouping import View
from hookcli.table.marks import is_fault, mark, signed
from hookcli.table.names import abbreviated
from hookcli.table.times import INCLUSIVE

_KINDS = tuple(reversed(HookKind))
_COUNTS = tuple(sorted(_KINDS, key=lambda kind: ("regist" not in kind, "optim" not in kind, "state" not in kind)))
_MARK = DECLARED["mark"]
_SHORT = 16  # columns of a short mark
_CLIPPED = 24  # columns of a remark without room for all of it
_MANY = 4  # a row in so many
_FEW = 3  # rows with faults that may have a line each where room is tight
_SMALL = -1000.0  # the order of a part of memory that is below a hundredth of the largest
_WIDE = 10  # columns of paths; wider ones stand after names
_NO_ZEROS = 27.5  # the order of shares of zeros that are all 0, before shapes and types
_NAME = 30  # columns of a name that always have room
_DOTTED = ("fqn", "target")  # columns of names that may lose parts of their middle
_CALL = [name for name in IDENTITY if name != "path"]
_ON_REQUEST = (Shown.ASKED, Shown.PAGE)


def reads_left(report: Report, column: Column) -> bool:
    """Return whether a column holds words, which align left, rather than figures."""
    return column.left or any(isinstance(row.get(column.name), (str, bool)) for row in report.rows)


def continues(row: Row, before: Row | None) -> bool:
    """Return whether a row is another tensor or rank of the call in the row before."""
    further = "fqn" in row.values and (row.get("path") or row.get("rank") is not None)
    return before is not None and bool(further) and all(row.get(key) == before.get(key) for key in _CALL)


def visible(report: Report, view: View) -> list[Column]:
    """Return the columns to show: the chosen ones, else all that are not on request only and hold new information."""
    if view.columns:
        return list(report.columns)
    operators = any(report.tree[row.fqn].is_operator for row in report.rows)
    flows = report.has_column("inputs")
    asked = {"source"} if operators else set()  # the line of an operator is shown; the source of a check is on request
    asked |= {"id"} if flows else set()
    chosen = [c for c in report.columns if (c.shown not in _ON_REQUEST or c.name in asked) and _informs(report, c)]
    marked = not any(c.shown == Shown.BELOW for c in report.columns) and any(mark(row) for row in report.rows)
    return [*chosen, _MARK] if marked else chosen


def _informs(report: Report, column: Column) -> bool:
    """True if a column holds information that is not said elsewhere."""
    shown = column.shown
    if not report.rows:
        return shown != Shown.BELOW  # headings alone show that nothing was measured
    if shown in (Shown.BELOW, Shown.MARK):
        return False
    values = [row.get(column.name) for row in report.rows]
    if column.name == "order" and values == [row.get("bucket") for row in report.rows]:
        return False
    if test := _TELLS.get(column.name):
        return test(report, values)
    if shown == Shown.VARIED:
        return len(set(values)) > 1
    if shown == Shown.SET or any(isinstance(value, bool) for value in values):
        return any(value not in (None, "", 0, column.usual) for value in values)
    return shown == Shown.ALWAYS or any(value is not None for value in values)


_TELLS: Mapping[str, Callable[[Report, Sequence[Any]], bool]] = {
    "fired": lambda report, _: any((row.get("fired") or 0) > (row.get("merged") or 1) for row in report.rows),
    # the run's dtype is above the table
    "dtype": lambda report, values: any(v not in (None, "", report.meta.get("dtype", "float32")) for v in values),
    "kind": lambda _, values: len(set(values)) > 1 or not set(values) <= {*bars.GRADIENTS},
}
"""Columns of which more than their values tells whether they inform."""


def fitted(report: Report, columns: Sequence[Column], widths: dict[str, int], width: int | None) -> list[Column]:
    """Leave out columns until the rest fit, those with the lowest `drop` first; of gradients the norm stays longest.

    Parts of memory stay by their size; one that is small beside the others stays only if all fit.
    """
    if width is None:
        return list(columns)
    orders = {column.name: order for column in columns if (order := order_of(report, columns, column)) is not None}
    room = width + 2 - sum(widths[c.name] + 2 for c in columns if c.name not in orders)
    dropped: set[str] = set()
    for name in sorted(orders, key=lambda name: orders[name], reverse=True):
        if widths[name] + 2 <= room and not (dropped and orders[name] == _SMALL):
            room -= widths[name] + 2
        else:
            dropped.add(name)
    pairs = {column.pair for column in columns if column.name in dropped} - {""}
    return [c for c in columns if c.name not in dropped and c.pair not in pairs]


def _beside(cells: Sequence[Sequence[str]], room: int) -> list[bool]:
    """For each row whether its mark, in the last cell, stands beside its figures, as far as there is room; else below.

    Short marks of many rows stand beside them in any case: lines below would double the table.
    """
    marks = [line[-1] for line in cells]
    fits = max(map(cell_len, marks), default=0) <= room
    short = [bool(mark) and cell_len(mark) <= _SHORT for mark in marks]
    many = sum(short) * _MANY > len(marks)
    return [bool(mark) and (fits or (many and is_short)) for mark, is_short in zip(marks, short, strict=True)]


def _clipped(remark: str) -> str:
    """The first words of a remark, as many as a mark beside a row may have."""
    first = remark[:_CLIPPED]
    if remark == first:
        return remark
    words = first.rpartition(", ")[0] or first.rpartition(" ")[0]
    return words.removesuffix(":") if words.endswith(":") else f"{words} …"


def widths_of(columns: Sequence[Column], cells: Sequence[Sequence[str]], view: View) -> dict[str, int]:
    """The width of each column, by name: its longest text or, on a terminal, the longest word of its heading."""
    wraps = view.width is not None or view.color  # a heading of several words may take several lines
    headings = [max(map(len, c.title.split() or [""])) if wraps else len(c.title) for c in columns]
    return {
        c.name: max([heading, *(cell_len(line[i]) for line in cells)])
        for i, (c, heading) in enumerate(zip(columns, headings, strict=True))
    }


def paths_after_names(columns: list[Column], cells: list[list[str]], view: View) -> list[Column]:
    """The columns without that of paths, where it is wide and keeps others out of a narrow table.

    Changes the cells: encoder["last_hidden_state"].
    """
    place = {column.name: number for number, column in enumerate(columns) if column.drop is None}
    if not {"fqn", "path"} <= place.keys() or view.width is None or view.columns:
        return columns
    widths = widths_of(columns, cells, view)
    whole = sum(widths[column.name] + 2 for column in columns if column != _MARK) - 2
    if widths["path"] <= _WIDE or whole <= view.width:
        return columns
    lead = ""
    for line in cells:
        path, name = line.pop(place["path"]), line[place["fqn"]]
        lead = " " * (len(name) - len(name.lstrip()) + 2) if name else lead
        line[place["fqn"]] = f"{name or lead}{path}"
    return [column for column in columns if column.name != "path"]


def with_remarks(
    shown: Report, columns: list[Column], cells: list[list[str]], widths: dict[str, int], width: int, *, tight: bool
) -> tuple[list[Column], list[str], list[str]]:
    """The columns, remarks that stand below rows since they would evict figures, and those left out.

    Takes these from the cells. Where room is `tight`, only remarks on faults stand below rows, and of many faults
    the first words beside the row.
    """
    if not cells or columns[-1].name != "mark":
        return columns, [], []
    room = width - sum(widths[column.name] + 2 for column in columns[:-1])
    beside = _beside(cells, room)
    lead = [" " * (len(line[0]) - len(line[0].lstrip()) + 2) for line in cells]
    rows = zip(shown.rows, cells, lead, beside, strict=True)
    remarks = ["" if stays or not line[-1] else before + signed(row, line[-1]) for row, line, before, stays in rows]
    many = tight and sum(map(is_fault, remarks)) > _FEW
    below = [remark if not tight or (is_fault(remark) and not many) else "" for remark in remarks]
    for line, stays, remark in zip(cells, beside, remarks, strict=True):
        line[-1] = line[-1] if stays else _clipped(remark.strip()) if many and is_fault(remark) else ""
    widths["mark"] = max(cell_len(line[-1]) for line in cells)
    left_out = [remark for remark, kept in zip(remarks, below, strict=True) if remark and not kept]
    return (columns if widths["mark"] else columns[:-1]), below if any(below) else [], left_out


def kept(
    shown: Report, columns: list[Column], cells: list[list[str]], widths: dict[str, int], view: View
) -> list[Column]:
    """The columns that fit beside the names, which are shortened: in a pipe, where people search for them, less."""
    place = next((i for i, column in enumerate(columns) if column.name in _DOTTED), None)
    width = None if view.columns else view.width or PIPE
    if not view.width or place is None:
        return fitted(shown, columns, widths, width)
    names = [line[place] for line in cells]
    least = _NAME if view.height else max(_NAME, view.width // 2)
    title, dotted = len(columns[place].title), columns[place].name
    widths[dotted] = max([title, *map(cell_len, abbreviated(names, least))])
    fitting = fitted(shown, columns, widths, width)
    room = view.width - (1 + sum(column.bar in bars.SCALES for column in fitting) if view.bars else 0)
    room -= sum(widths[column.name] + 2 for column in fitting if column.name != dotted)
    for line, name in zip(cells, abbreviated(names, max(room, least)), strict=True):
        line[place] = name
    widths[dotted] = max([title, *(cell_len(line[place]) for line in cells)])
    return fitting


def order_of(report: Report, columns: Sequence[Column], column: Column) -> float | None:
    """The order in which a column leaves a narrow table, as `_order` has it; shares of zeros that are all 0 early."""
    of_zeros = column.name == "zeros" and not any(row.get("zeros") for row in report.rows)
    return _NO_ZEROS if of_zeros else _order(report, columns, column)


def _order(report: Report, columns: Sequence[Column], column: Column) -> float | None:
    """The order in which a column leaves a narrow table, the lowest first; None for one that stays."""
    if column.unit == "firings" and column.name in _COUNTS:  # rare kinds first
        return _COUNTS.index(HookKind(column.name)) - 1000
    if column.name == "l2" and report.rows and report.rows[0].get("kind") in bars.GRADIENTS:
        return math.inf
    if column in MEMORY_KINDS and report.grouping == "disjoint":
        sums = {c.name: sum(row.get(c.name) or 0 for row in report.rows) for c in MEMORY_KINDS}
        own, ranked = sums[column.name], sorted(sums.values())
        return _SMALL if own < ranked[-1] / 100 else 30 + ranked.index(own)  # after the type
    if column.name in INCLUSIVE and not any(other.name == INCLUSIVE["forward_us"] for other in columns):
        return -100.0  # times that nobody asked for
    return column.drop


def notes(report: Report, columns: Sequence[Column]) -> list[str]:
    """Return a report's sentences, grouped by text; none if their column is shown."""
    visible = {column.name for column in columns}
    below = [c.name for c in report.columns if c.shown == Shown.BELOW and c.name not in visible]
    owners = {name: "check" if name == "hint" else "fqn" for name in below}
    pairs = [[(r[name], str(r[key] or "(model)")) for r in report.rows if r.get(name)] for name, key in owners.items()]
    return [text for each in pairs for text in by_reason(each)]

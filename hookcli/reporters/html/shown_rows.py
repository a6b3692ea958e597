"""The rows of a report as a page shows them: cells as text, remarks, and the tree that they form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hookcli.system.escaping import visible
from hookcli.table import Column, Kind, Report, Row
from hookcli.table.formatting import cell
from hookcli.table.marks import Fault, mark, within
from hookcli.table.tree import Node

_OUTPUTS = ("output", "", None)  # kinds of a comparison's rows that form a tree


def shown_rows(report: Report, row_faults: Sequence[Fault | None]) -> dict[str, Any]:
    """The rows of a report as a page shows them, with these faults.

    `texts` are cells by column, None where the value is its own text; `marks` the remarks on rows by their numbers, but
    for what is beyond tolerance, which has its own columns; `parents` the row that each is a part of, None where
    rows form no tree; `inside` the worst fault of a row's parts.
    """
    parents = parents_of(report)
    marks = (mark(row.having({"beyond": None}) if row.get("beyond") else row) for row in report.rows)
    return {
        "texts": texts_of(report, report.rows),
        "marks": {at: visible(text) for at, text in enumerate(marks) if text},
        "parents": parents,
        "inside": faults_inside(report, parents, row_faults) if parents else {},
    }


def columns_of(report: Report, rows: Sequence[Row]) -> list[Column]:
    """The columns of a report and of all else that these rows have, without their histograms."""
    names = dict.fromkeys([column.name for column in report.columns])
    names |= dict.fromkeys(name for row in rows for name in report.flat(row))
    return [column for column in map(report.column, names) if column.kind != Kind.HISTOGRAM]


def texts_of(report: Report, rows: Sequence[Row]) -> dict[str, list[str | None]]:
    """The cells of rows by column, None where the value is its own text; no column in which all are.

    Floats are left to the page, which writes the charts' floats, too: as text they would make it a third longer.
    """
    texts = {}
    for column in (column for column in columns_of(report, rows) if column.kind != Kind.FIGURE):
        cells = [(cell(row, column), row.get(column.name)) for row in rows]
        texts[column.name] = [None if text == value else text for text, value in cells]
    return {name: column for name, column in texts.items() if any(text is not None for text in column)}


def parents_of(report: Report) -> list[int | None] | None:
    """For each row the latest one before it of a module around its own; None unless rows are in the order of calls."""
    names = [column.name for column in report.columns]
    in_order = names[:1] == ["fqn"] and "call" in names and "kind" not in names and report.grouping == "nested"
    if not in_order and report.probe != "diff":
        return None
    latest: dict[Node, int] = {}
    parents: list[int | None] = []
    for at, row in enumerate(report.rows):
        place, in_tree = report.tree[row.fqn], in_order or row.get("kind") in _OUTPUTS
        parents.append(next((latest[node] for node in place.around() if in_tree and node in latest), None))
        if in_tree and (not row.get("path") or place not in latest):
            latest[place] = at
    return parents


def faults_inside(report: Report, parents: Sequence[int | None], row_faults: Sequence[Fault | None]) -> dict[int, str]:
    """The worst fault of the parts of each row, by its number."""
    held: dict[int, list[Fault]] = defaultdict(list)
    for at, fault in enumerate(row_faults):
        around = parents[at] if fault else None
        while fault and around is not None:
            held[around].append(fault)
            around = parents[around]
    places = {at: report.tree[report.rows[at].fqn] for at in held}
    return {at: visible(within(place, held[at], report.tree)) for at, place in places.items()}

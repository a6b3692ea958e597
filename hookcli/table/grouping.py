"""Applies display options to a report: groups deep rows, chooses columns, sorts. Exact, and free of torch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from hookcli.errors import UsageError, shortened
from hookcli.table import Report, Row
from hookcli.table.columns import find_column
from hookcli.table.columns.training import OF_PARAMETERS
from hookcli.table.marks import Fault, faults, with_verdict, within
from hookcli.table.merge import gathered
from hookcli.table.merged_rows import merged, merged_by_owner
from hookcli.table.tree import Node


@dataclass(frozen=True, slots=True)
class View:
    """The way a report is shown.

    `depth` groups rows below it (None: the reporter decides; math.inf: no grouping); `columns` and `sort` name columns
    (`-mean`: largest first). `width` and `height` are the terminal's, None if the output is a file or a pipe, where
    `COLUMNS` may ask for a width; `color` allows escape codes, `bars` bars beside figures. `python`: a program asked,
    so that remarks name arguments instead of options. `above`: a table begins with its verdict; without, a text above
    has it.
    """

    depth: float | None = None
    columns: Sequence[str] = ()
    sort: str | None = None
    width: int | None = None
    height: int | None = None
    color: bool = False
    bars: bool = False
    python: bool = False
    above: bool = True


def shown(report: Report, view: View, *, folds: bool = True) -> Report:
    """The report with a verdict, grouped, sorted and reduced to columns as asked; without `folds` with every row."""
    report = with_verdict(report)
    if folds and view.depth is not None:
        report = group_rows(report, as_asked(report, view.depth))
    return apply_view(report, view)


def parse_depth(text: str | None, option: str = "--depth") -> float | None:
    """`3`, or `all` as infinity; None where it is left to the reporter. Raises UsageError for anything else."""
    if text is None or text == "auto":
        return None
    if text == "all":
        return math.inf
    if not text.isdecimal() or int(text[:_DIGITS]) == 0 or len(text) > _DIGITS:
        raise UsageError(f"{option} {shortened(text)!r}: give a number from 1, or all")
    return int(text)


_DIGITS = 9  # int() refuses thousands of digits


def for_people(report: Report) -> Report:
    """The report without the rows marked `aside`, which a line below the table sums up."""
    return replace(report, rows=[row for row in report.rows if not row.get("aside")])


def deepest(report: Report) -> int:
    """The depth of the deepest row."""
    return max((report.tree[row.fqn].level for row in report.rows), default=0)


def as_asked(report: Report, depth: float) -> float:
    """The depth that was asked for; math.inf if the report is not so deep."""
    return math.inf if has_names(report) and depth > deepest(report) else depth


def has_names(report: Report) -> bool:
    """True for rows that can be grouped by module; a list of models or findings can't."""
    return report.grouping != "list" and report.has_column("fqn")


def group_rows(report: Report, depth: float, *, operators: bool = False) -> Report:
    """The report with one row for all calls of a module, and rows deeper than `depth` grouped into their ancestor.

    A module at the limit keeps its own figures. A `note` names the worst fault that a row hides. Parameters have no
    row above them, so those below the limit are merged into one; so are modules below a container that was never called
    itself: the statistics of the innermost, and the costs of the outermost, which include their parts' costs.
    `merged` counts the rows that a row stands for, if more than one. Rows of details go where their module has a row.

    If rows stand for themselves alone (`Report.grouping`), all within an ancestor are merged into one, and counts
    (columns with a unit) are summed. Events below the limit are left out; successive moments within one ancestor are
    merged. For steps, the last one is kept, and the first if it had other buckets. Norms over a module's own parameters
    become norms over all parameters within. `operators`: operators of modules at the limit keep their rows.
    """
    if math.isinf(depth) or not (has_names(report) or report.grouping == "steps"):
        return report
    report = _without_details(report)
    match report.grouping:
        case "events":
            return replace(report, rows=[row for row in report.rows if report.tree[row.fqn].level <= depth])
        case "moments":
            return replace(report, rows=stretches(report, depth))
        case "steps":
            return replace(report, rows=_ends(report.rows))
        case "disjoint":
            rows = merged_by_owner(report, depth)
        case _:
            rows = _of_nested(report, depth, operators=operators)
    return replace(report, rows=_marked(report, rows, depth))


def _without_details(report: Report) -> Report:
    """The report without the rows of a module's details, such as its heads, where the module itself has a row."""
    for name in (column.name for column in report.columns if column.detail):
        own = {row.fqn for row in report.rows if row.get(name) is None}
        report = replace(report, rows=[r for r in report.rows if r.get(name) is None or r.fqn not in own])
    return report


def _of_nested(report: Report, depth: float, *, operators: bool) -> list[Row]:
    """The grouped rows of a report in which a module's row includes its parts' rows."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    hidden: dict[Node, list[Row]] = defaultdict(list)
    places = [report.tree[row.fqn] for row in report.rows]
    present, parents = {*places}, {place.owner for place in places}
    costs = any("macs" in row.values for row in report.rows)
    for row, place in zip(report.rows, places, strict=True):
        owner = place.shown(depth, operators=operators)
        is_own = owner is place
        if not is_own and owner in present:
            hidden[owner].append(row)
        # A row between the two already holds its costs.
        elif is_own or (present.isdisjoint({*place.around()} - {*owner.chain()}) if costs else place not in parents):
            key = owner, row.get("kind"), row.get("pass"), row.get("path", "") if is_own else "", row.get("rank")
            groups.setdefault(key, []).append(row)
    columns = [*report.known_columns()]
    rows = [merged(rows, owner, hidden[owner], columns) for (owner, *_), rows in groups.items()]
    rows = [row.having({"depth": report.tree[row.fqn].level}) if "depth" in row.values else row for row in rows]
    return _gathered(report, rows, depth)


def _marked(report: Report, grouped: Sequence[Row], depth: float) -> list[Row]:
    """The grouped rows, each with a note on the worst fault of those that it hides."""
    hidden: dict[str, list[Fault]] = defaultdict(list)
    shown = {row.fqn for row in grouped}
    for one in filter(None, faults(report)):
        if one.fqn not in shown:
            hidden[report.tree[one.fqn].at(depth).fqn].append(one)

    def noted(row: Row) -> Row:
        if not (below := hidden.pop(row.fqn, None)):
            return row
        note = "; ".join(filter(None, [within(report.tree[row.fqn], below, report.tree), row.get("note")]))
        return row.having({"note": note})

    return [noted(row) for row in grouped] if hidden else [*grouped]


def _gathered(report: Report, grouped: list[Row], depth: float) -> list[Row]:
    """The grouped rows; parameters' rows have the norms of all within, on the first row of each module."""
    if not any(column.name in row.values for row in report.rows[:1] for column in OF_PARAMETERS):
        return grouped
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in report.rows:
        parts[report.tree[row.fqn].at(depth).fqn].append(row)
    return [row.having(gathered(parts.pop(row.fqn, ()))) for row in grouped]


def _ends(rows: Sequence[Row]) -> list[Row]:
    """The rows of the last step, and of the first if it had other buckets."""
    buckets: dict[int, set[frozenset[str]]] = defaultdict(set)
    for row in rows:
        buckets[row["step"]].add(frozenset(row["fqns"]))
    first, last = (row["step"] for row in (rows[0], rows[-1])) if rows else (0, 0)
    kept = {last, first} if buckets[first] != buckets[last] else {last}
    return [row for row in rows if row["step"] in kept]


def apply_view(report: Report, view: View) -> Report:
    """The report, sorted and reduced to the chosen columns. Raises UsageError for an unknown column."""
    dashes = "" if view.python else "--"
    if view.sort:
        name = find_column(f"{dashes}sort", view.sort.removeprefix("-"), report.columns).name
        valued, rest = [], []
        for row in report.rows:
            value = row.get(name)
            if value is None or (isinstance(value, float) and math.isnan(value)):
                rest.append(row)  # they come last either way
                continue
            # Zeros are sorted by their share, as the table shows them, not by their number; texts come after numbers.
            key = value / max(row["numel"], 1) if name == "zeros" and row.stats else _rank(value)
            valued.append((isinstance(key, str), key, row))
        valued.sort(key=itemgetter(0, 1), reverse=view.sort.startswith("-"))
        report = replace(report, rows=[*(row for *_, row in valued), *rest])
    if view.columns:
        chosen = [find_column(f"{dashes}columns", name, report.columns) for name in view.columns]
        report = replace(report, columns=[*{column.name: column for column in chosen}.values()])
    return report


def _rank(value: Any) -> Any:
    """The sort key of a value: shapes by their number of elements, several by the sum; lists of names as text."""
    if not isinstance(value, (list, tuple)):
        return value
    if any(isinstance(part, str) for part in value):
        return " ".join(map(str, value))
    if value and isinstance(value[0], (list, tuple)):
        return sum(map(_rank, value))
    return math.prod(part or 0 for part in value)


def stretches(report: Report, depth: float) -> list[Row]:
    """One row for successive moments of one phase within one module at this depth: the highest of them.

    Its `bytes` are in use at the end of the stretch; its `change_bytes` cover the whole stretch.
    """
    merged_rows = []
    for (_, fqn), moments in groupby(report.rows, key=lambda row: (row["phase"], report.tree[row.fqn].at(depth).fqn)):
        stretch = list(moments)
        highest = max(stretch, key=lambda row: int(row["highest"]))
        whole = {"fqn": fqn, "bytes": stretch[-1]["bytes"], "change_bytes": sum(row["change_bytes"] for row in stretch)}
        merged_rows.append(Row({**highest.values, **whole}))
    return merged_rows

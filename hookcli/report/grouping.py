"""Applies display options to a report: groups deep rows, chooses columns, sorts. Exact, and free of torch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookcli.report import Report, Row, TensorStats
from hookcli.report.columns import find_column
from hookcli.report.discrepancy import Discrepancy
from hookcli.report.norms import NORMS, gathered

_SIZES = ("params", "trainable")


@dataclass(frozen=True, slots=True)
class View:
    """The way a report is shown.

    `depth` groups rows below it (None: the reporter decides; math.inf: no grouping); `columns` and `sort` name columns
    (`-mean`: largest first). `width` and `height` are the terminal's, None if the output is a file or a pipe; `color`
    allows escape codes.
    """

    depth: float | None = None
    columns: Sequence[str] = ()
    sort: str | None = None
    width: int | None = None
    height: int | None = None
    color: bool = False


def depth_of(row: Row) -> int:
    """The number of names in an fqn; 0 for the model itself."""
    return row.fqn.count(".") + 1 if row.fqn else 0


def for_people(report: Report) -> Report:
    """The report without the rows marked `aside`, which a line below the table sums up."""
    return replace(report, rows=[row for row in report.rows if not row.get("aside")])


def deepest(report: Report) -> int:
    """The depth of the deepest row."""
    return max((depth_of(row) for row in report.rows), default=0)


def fitting_depth(report: Report, lines: int) -> float:
    """The greatest depth with at most `lines` rows, or the least that tells parts apart; math.inf if all fit."""
    if report.grouping == "steps":
        return 1
    if len(report.rows) <= lines or not _has_names(report):
        return math.inf
    levels = range(deepest(report), _branching(report), -1)
    return next((depth for depth in levels if len(group_rows(report, depth).rows) <= lines), levels.stop)


def _branching(report: Report) -> int:
    """The least depth at which there is more than a lone child of the model, whose row would say nothing new."""
    names = {tuple(row.fqn.split(".")) for row in report.rows if row.fqn}
    return next((n for n in range(1, deepest(report) + 1) if len({parts[:n] for parts in names}) > 1), 1)


def _has_names(report: Report) -> bool:
    """True for rows that can be grouped by module; a list of models or findings can't."""
    return report.grouping != "list" and any(column.name == "fqn" for column in report.columns)


def group_rows(report: Report, depth: float) -> Report:
    """The report with one row for all calls of a module, and rows deeper than `depth` grouped into their ancestor.

    A module at the limit keeps its own figures, with a `note` if something below it is not finite. Parameters have no
    row above them, so those below the limit are merged into one; so are modules below a container that was never called
    itself: the statistics of the innermost, and the costs of the outermost, which include those of their parts.
    `merged` counts the rows that a row stands for, if more than one.

    If rows stand for themselves alone (`Report.grouping`), all within an ancestor are merged into one, and counts
    (columns with a unit) are summed. Events below the limit are left out. For steps, the last one is kept, and the
    first if it had other buckets. Norms over a module's own parameters become norms over all parameters within.
    """
    if math.isinf(depth) or not (_has_names(report) or report.grouping == "steps"):
        return report
    if report.grouping == "steps":
        return replace(report, rows=_first_and_last(report.rows))
    if report.grouping == "events":
        return replace(report, rows=[row for row in report.rows if depth_of(row) <= depth])
    if report.grouping == "disjoint":
        return replace(report, rows=_merged_by_owner(report, depth))
    groups: dict[tuple[Any, ...], list[Row]] = {}
    hidden: dict[str, list[Row]] = defaultdict(list)
    present = {row.fqn for row in report.rows}
    parents = {row.fqn.rpartition(".")[0] for row in report.rows}
    costs = any("macs" in row.values for row in report.rows)
    for row in report.rows:
        owner = ".".join(row.fqn.split(".")[: int(depth)]) if depth_of(row) > depth else row.fqn
        if owner == row.fqn:
            groups.setdefault(_identity(row), []).append(row)
        elif owner in present:
            hidden[owner].append(row)
        elif not _has_ancestor(row.fqn, owner, present) if costs else row.fqn not in parents:
            groups.setdefault((owner, row.get("kind"), row.get("pass"), "", row.get("rank")), []).append(row)
    rows = [_merged(rows, key[0], hidden[key[0]]) for key, rows in groups.items()]
    if any(name in row.values for row in report.rows[:1] for name in NORMS):
        rows = _gathered(report.rows, rows, int(depth))
    return replace(report, rows=rows)


def _gathered(rows: Sequence[Row], folded: Sequence[Row], depth: int) -> list[Row]:
    """The grouped rows with the norms of all parameters within, on the first row of each module."""
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        parts[".".join(row.fqn.split(".")[:depth])].append(row)
    return [replace(row, values={**row.values, **gathered(parts.pop(row.fqn, ()))}) for row in folded]


def _first_and_last(rows: Sequence[Row]) -> list[Row]:
    steps = [row["step"] for row in rows]
    of = {step: {frozenset(row["fqns"]) for row in rows if row["step"] == step} for step in {*steps[:1], *steps[-1:]}}
    return [row for row in rows if row["step"] == steps[-1] or of.get(row["step"], of[steps[-1]]) != of[steps[-1]]]


def _merged_by_owner(report: Report, depth: float) -> list[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in report.rows:
        owner = ".".join(row.fqn.split(".")[: int(depth)])
        groups.setdefault((owner, row.get("pass"), row.get("rank")), []).append(row)
    counted = [c.name for c in report.columns if c.unit and c.unit != "elements"]
    merged = []
    for (owner, *_), rows in groups.items():
        row = _merged(rows, owner, ())
        sums = {name: sum(filter(None, (r.get(name) for r in rows))) for name in counted} if rows[1:] else {}
        merged.append(replace(row, values={**row.values, **sums, **_merged_out(rows)}))
    return merged


def _merged_out(rows: Sequence[Row]) -> dict[str, Any]:
    """The merged statistics of outgoing gradients, for rows that have them."""
    parts = [row for row in rows if row.get("out_numel") is not None]
    stats = [TensorStats.of(part.values, "out_") for part in parts]
    return (TensorStats.merge(stats) if stats[1:] else stats[0]).named("out_") if stats else {}


def _has_ancestor(fqn: str, owner: str, present: set[str]) -> bool:
    """True if a row between `owner` and this one already holds its costs."""
    while (fqn := fqn.rpartition(".")[0]) and fqn != owner:
        if fqn in present:
            return True
    return False


def _identity(row: Row) -> tuple[Any, ...]:
    """The key that the calls of one module, or the passes over one parameter, share."""
    return row.fqn, row.get("kind"), row.get("pass"), row.get("path", ""), row.get("rank")


def _merged(rows: Sequence[Row], fqn: str, below: Sequence[Row]) -> Row:
    values = dict(rows[0].values)
    if len(rows) > 1:
        # Values that differ between the rows and can't be merged are left out; they would be the first row's.
        differing = {key for key, value in values.items() if any(row.get(key) != value for row in rows)}
        values |= dict.fromkeys(differing - {"index", "order"}) | {"fqn": fqn, "merged": len(rows)}
        if "macs" in values:
            values |= _summed_costs(rows) | {"depth": fqn.count(".") + 1 if fqn else 0}
        if "times" in values:
            values |= _worst(rows)
    if edited := list(dict.fromkeys(row.fqn for row in below if row.get("edited"))):
        own = [values["edited"]] if values.get("edited") else []
        values["edited"] = "; ".join([*own, _first_of(edited, fqn)])
    if note := _note(below, fqn):
        values["note"] = note
    stats = [row.stats for row in rows if row.stats]
    return Row(values, TensorStats.merge(stats) if len(stats) > 1 else rows[0].stats)


def _worst(rows: Sequence[Row]) -> dict[str, Any]:
    """The merged figures of compared rows, with the message of the row that is furthest off."""
    worst = max(rows, key=lambda row: (bool(row.get("beyond")), row.get("times") or 0.0))
    said = {key: worst.get(key) for key in ("figure", "a", "b", "times", "differs", "beyond")}
    parts = [Discrepancy.of(row.values) for row in rows if "error_l2" in row.values]
    return said | (Discrepancy.merge(parts).figures() if parts else {})


def _summed_costs(rows: Sequence[Row]) -> dict[str, int | None]:
    """MACs of every call, and parameters of every module once; None if none is known."""
    once = {row.fqn: row for row in reversed(rows) if row["params"] is not None}.values()
    known = [row["macs"] for row in rows if row["macs"] is not None]
    sums: dict[str, int | None] = {key: sum(row[key] for row in once) if once else None for key in _SIZES}
    return sums | {"macs": sum(known) if known else None}


def _note(below: Sequence[Row], fqn: str) -> str | None:
    beyond = [row.fqn for row in below if row.get("beyond")]
    if beyond:
        return f"beyond in {_first_of(beyond, fqn)}"
    bad = [row for row in below if row.stats and (row.stats.nan or row.stats.inf)]
    if not bad:
        return None
    what = "NaN" if bad[0]["nan"] else "Inf"
    return f"{what} in {bad[0].fqn.removeprefix(fqn + '.')}"


def _first_of(fqns: Sequence[str], owner: str) -> str:
    """The first of these parts of a module, and how many more there are."""
    return fqns[0].removeprefix(f"{owner}.") + (f" and {len(fqns) - 1} more" if fqns[1:] else "")


def apply_view(report: Report, view: View) -> Report:
    """The report, sorted and reduced to the chosen columns. Raises UsageError for an unknown column."""
    if view.sort:
        name = find_column("--sort", view.sort.removeprefix("-"), report.columns).name
        report = replace(report, rows=_sorted(report.rows, name, view.sort.startswith("-")))
    if view.columns:
        chosen = dict.fromkeys(find_column("--columns", name, report.columns) for name in view.columns)
        report = replace(report, columns=[*chosen])
    return report


def _sorted(rows: Sequence[Row], name: str, descending: bool) -> list[Row]:
    """The rows, sorted; rows without a value (None, NaN) come last either way."""

    def missing(value: Any) -> bool:
        return value is None or (isinstance(value, float) and math.isnan(value))

    valued = [row for row in rows if not missing(row.get(name))]
    rest = [row for row in rows if missing(row.get(name))]

    def rank(row: Row) -> Any:
        """Sort zeros by their share, as the table shows them, not by their number."""
        return row[name] / max(row["numel"], 1) if name == "zeros" and row.stats else _rank(row[name])

    return sorted(valued, key=rank, reverse=descending) + rest


def _rank(value: Any) -> Any:
    """The sort key of a value: shapes by their number of elements, several shapes by the sum."""
    if not isinstance(value, (list, tuple)):
        return value
    return sum(map(_rank, value)) if value and isinstance(value[0], (list, tuple)) else math.prod(value)

"""Merges rows into one: calls of a module, parts of a container, repeated blocks. Exact, and free of torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hookcli.table import Column, Merge, Report, Row, TensorStats
from hookcli.table.columns import place_of
from hookcli.table.discrepancy import Discrepancy
from hookcli.table.formatting import listed
from hookcli.table.merge import merged_values, origin
from hookcli.table.names import in_words
from hookcli.table.times import remaining_times
from hookcli.table.tree import Node


def merged(rows: Sequence[Row], place: Node, below: Sequence[Row], columns: Iterable[Column]) -> Row:
    """One row of a place for all these, merged by the rules of their columns; `below` are the rows that it hides."""
    fqn = place.fqn
    values = _of_several(rows, place, columns) if rows[1:] else dict(rows[0].values)
    if edited := list(dict.fromkeys(row.fqn for row in below if row.get("edited"))):
        names = listed([in_words(name, fqn) for name in edited], 1)
        values["edited"] = "; ".join(filter(None, [values.get("edited"), names]))
    changed = _changed(below, fqn, str(rows[0].values.get("change") or ""))
    if notes := [*filter(None, [_beyond(below, fqn), changed, values.get("note")])]:
        values["note"] = "; ".join(notes)
    stats = [row.stats for row in rows if row.stats]
    together = TensorStats.merge(stats) if stats[1:] else next(iter(stats), None)
    return replace(rows[0], values=values, stats=together)


def _of_several(rows: Sequence[Row], place: Node, columns: Iterable[Column]) -> dict[str, Any]:
    """The values of two or more rows as one row's, with what tells how many they are"""
    fqn = place.fqn
    values = merged_values(rows, columns) | {"fqn": fqn, "merged": len(rows)} | _each_shape(rows, fqn)
    if any(row.get(key) != rows[0].get(key) for row in rows for key in ("input_names", "input_shape")):
        values.pop("input_names", None)
    if any(row.get("origin") for row in rows):
        values["origin"] = None
    if place.blocks > 1:
        values |= {"folded": place.blocks, "is_block": place.repeats > 1}
        values |= _apart(rows, place, values.get("note"))
    of_any_call = {"call": None, "pass": None}  # of modules, or heads of one
    places = len({place_of({**row.values, "fqn": origin(row), **of_any_call}) for row in rows})
    calls, rest = divmod(len(rows), places)
    if calls > 1 and not rest and places == values.get("folded", 1):
        values["repeated"] = calls
    distances = [Discrepancy.of(row.values) for row in rows if {"error_l2", "times"} <= row.values.keys()]
    return values | remaining_times(rows, values) | (Discrepancy.merge(distances).figures() if distances else {})


def _each_shape(rows: Sequence[Row], fqn: str) -> dict[str, Any]:
    """The shapes that a module had in its calls, each once, where they differ; none for rows of several modules."""
    if any(row.fqn != fqn for row in rows):
        return {}
    names = [key for key in rows[0].values if key.endswith("shape") and any(r.get(key) != rows[0][key] for r in rows)]
    return {f"{key}s": [*{str(row[key]): row[key] for row in rows if row.get(key)}.values()] for key in names}


def _apart(rows: Sequence[Row], place: Node, note: str | None) -> dict[str, str]:
    """A note, before another one, between which ends the L2 norms of folded blocks lie, if they are far apart."""
    norms = sorted((row.stats.l2, origin(row)) for row in rows if row.stats and row.stats.numel)
    if not norms or not norms[-1][0] > _APART * norms[0][0]:
        return {}
    (least, first), (most, last) = norms[0], norms[-1]
    around = [node.owner.fqn for node in place.chain() if node.owner and node.repeats > 1][-1]  # the outermost block
    first, last = (in_words(name, around) for name in (first, last))
    return {"note": "; ".join(filter(None, [f"L2 from {least:.2g} ({first}) to {most:.2g} ({last})", note]))}


_APART = 10  # times the least norm: more is worth a word


def _beyond(below: Sequence[Row], fqn: str) -> str | None:
    beyond = [in_words(row.fqn, fqn) for row in below if row.get("beyond")]
    return f"beyond in {listed(beyond, 1)}" if beyond else None


def _changed(below: Sequence[Row], fqn: str, own: str) -> str | None:
    """Other settings of hidden parts, and changes within tolerance; where the module was renamed, its parts were."""
    kept = {row.fqn: row.get("reset") or (not row.get("beyond") and row.get("change")) for row in below}
    changes = {name: str(change) for name, change in kept.items() if change}
    if own.startswith(_RENAMED):
        changes = {name: change for name, change in changes.items() if not change.startswith(_RENAMED)}
    if not changes:
        return None
    name, change = next(iter(changes.items()))
    more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
    return f"{in_words(name, fqn)}: {change}{more}"


_RENAMED = "renamed"


def merged_by_owner(report: Report, depth: float) -> list[Row]:
    """A row for all rows within one ancestor at this depth, of a report whose rows stand for themselves alone."""
    groups: dict[tuple[Node, Any, Any], list[Row]] = {}
    for row in report.rows:
        owner = report.tree[row.fqn].at(depth)
        groups.setdefault((owner, row.get("pass"), row.get("rank")), []).append(row)
    counted = [c.name for c in report.columns if c.unit and c.unit != "elements" and c.merge == Merge.SAME]
    columns = report.known_columns()
    merged_rows = []
    for (owner, *_), rows in groups.items():
        row = merged(rows, owner, (), columns)
        sums = {name: sum(filter(None, (r.get(name) for r in rows))) for name in counted} if rows[1:] else {}
        outgoing = [TensorStats.of(r.values, "out_") for r in rows if r.get("out_numel") is not None]
        if outgoing:
            sums |= (TensorStats.merge(outgoing) if outgoing[1:] else outgoing[0]).named("out_")
        merged_rows.append(row.having(sums))
    return merged_rows

"""Operators of two sides: their lines, and those that only one side has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from hookcli.report import Report, Row
from hookcli.report.names import is_operator, is_within


def lone_before(first: Row, rows: Sequence[Row]) -> list[Row]:
    """The operators that one side alone has just before a place: of a module, after its last part that is alike.

    `rows` are those of outputs, in the order of execution, containers before their parts.
    """
    if first not in rows:
        return []
    start = end = rows.index(first)
    if not is_operator(first.fqn):
        inside = takewhile(lambda row: is_within(row.fqn, first.fqn) or _is_lone(row), rows[start + 1 :])
        end += 1 + len([*inside])
    before = (row for row in reversed(rows[:end]) if not is_within(first.fqn, row.fqn) and row is not first)
    return [*takewhile(_is_lone, before)][::-1]


def named_alone(rows: Sequence[Row]) -> str:
    """Operators that one side alone has, with their lines: "before it, only in A: :mul_1 at net.py:7"."""
    sides = {"only in A": "removed", "only in B": "added"}
    places = {
        side: [
            f"{row.fqn} at {row['source']}" if row.get("source") else row.fqn for row in rows if row["change"] == change
        ]
        for side, change in sides.items()
    }
    said = "; ".join(f"{side}: {', '.join(names)}" for side, names in places.items() if names)
    return f"before it, {said}" if said else ""


def both_sources(a: str | None, b: str | None) -> dict[str, str]:
    """The source lines of an operator on both sides, for a row's `source`; empty where none is known."""
    said = " → ".join(dict.fromkeys(filter(None, (a, b))))
    return {"source": said} if said else {}


def operators_of_both(a: Report, b: Report) -> tuple[Report, Report, list[str]]:
    """The reports without operators where one has none, which says nothing of its model; and a note if so."""
    has = [any(is_operator(row.fqn) for row in report.rows) for report in (a, b)]
    if has[0] == has[1] or not (a.rows and b.rows):
        return a, b, []
    a, b = (replace(report, rows=[row for row in report.rows if not is_operator(row.fqn)]) for report in (a, b))
    return a, b, [f"{'A' if has[0] else 'B'} alone was measured with --ops: its operators are left out"]


def _is_lone(row: Row) -> bool:
    return is_operator(row.fqn) and row.get("change") in ("added", "removed")

"""The reports that can be compared, the place where two sides begin to differ, and the operators of one side there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from typing import NamedTuple

from hookcli.errors import UsageError
from hookcli.registry.capability import capabilities
from hookcli.table import Report, Row
from hookcli.table.meta import Meta, made
from hookcli.table.names import is_operator, is_within

_UNFIT = ("diff", "check")
_LISTS = [one.name for one in capabilities() if one.compares]


def check_pair(a: Report, b: Report) -> None:
    """Raise UsageError for reports that can't be compared with each other."""
    if a.probe != b.probe:
        raise UsageError(f"A is a report of {a.probe}, B of {b.probe}: compare reports of one command")
    if reason := unfit(a):
        raise UsageError(f"reports of {a.probe} can't be compared{reason}")


def unfit(report: Report) -> str:
    """The reason why a report can't be compared, after "can't be compared"; "" if it can."""
    fits = report.grouping == "nested" or report.probe in _LISTS
    if report.probe in _UNFIT or not fits:
        return "; reports of shapes, inputs, activations and grads can"
    if not report.has_column("fqn"):
        return ": their rows are not places in a model"
    return ""


def of_both(a: Meta, b: Meta) -> Meta:
    """The entries that both runs of a comparison share, `A → B` for texts that differ, and both sides whole."""
    shared: dict[str, object] = {}
    for key, value in a.items():
        other = b.get(key)
        if value == other and value is not None:
            shared[key] = value
        elif isinstance(value, str) and isinstance(other, str):
            shared[key] = f"{value} → {other}"
    return {**made(shared.items()), "a": a, "b": b}


WEIGHT = "weight"
"""The `kind` of rows of parameters and buffers."""
OUTPUT = "output"
"""The `kind` of rows of what modules return."""
_NAMED = 3


def first_beyond(rows: Iterable[Row]) -> Row | None:
    """The first row beyond tolerance in the order of execution.

    A container comes before its parts in a report but returns after them, so a part that is beyond tolerance is first.
    A parameter or buffer is chosen only if nothing that was computed is beyond tolerance.
    """
    differing = [row for row in rows if row.get("beyond")]
    beyond = [row for row in differing if row.get("kind") != WEIGHT] or differing
    first = None
    for row in beyond:
        if first is None or (is_within(row.fqn, first.fqn) and row.get("kind") == first.get("kind")):
            first = row
    return first


class Origin(NamedTuple):
    """The place where a comparison begins to differ: its row, and the operators that one side alone has before it, or
    at its end, which are then the cause.
    """

    first: Row
    lone: Sequence[Row] = ()

    @property
    def fqn(self) -> str:
        """The name of the part that is the cause."""
        return self.lone[0].fqn if self.lone else self.first.fqn

    def text(self, place: str) -> str:
        """The origin in words, for the first row's `place`."""
        if not self.lone:
            return place
        inside = is_within(self.lone[0].fqn, self.first.fqn)
        return f"{'at the end of' if inside else 'before'} {place}, {named_alone(self.lone)}"


def origin_of(rows: Sequence[Row]) -> Origin | None:
    """The origin of what is beyond tolerance among these rows; None if nothing is.

    Operators of one side are not causes of a difference in a module or operator that received the same on both sides.
    """
    first = first_beyond(rows)
    if first is None:
        return None
    lone = lone_before(first, [row for row in rows if row.get("kind") in (None, OUTPUT)])
    innocent = first.get("received") == "equal" and not any(is_within(row.fqn, first.fqn) for row in lone)
    return Origin(first, () if innocent else lone)


def between_modules(rows: Sequence[Row]) -> bool:
    """True if the first difference arose in functions that ran between modules: operators can tell where."""
    first = first_beyond(rows)
    if first is None or first.get("kind") != OUTPUT or is_operator(first.fqn):
        return False
    return first.get("received") == "differ" or any(is_within(row.fqn, first.fqn) for row in rows)


def lone_before(first: Row, rows: Sequence[Row]) -> list[Row]:
    """The operators that one side alone has just before a place: of a module, after its last part that is alike.

    `rows`: outputs, in the order of execution, containers before their parts.
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
    """Operators that one side alone has, with their lines: "only in A: :mul_1, :add_1 (net.py:7)"."""
    texts = []
    for side, change in (("A", "removed"), ("B", "added")):
        alone = [row for row in rows if row["change"] == change]
        operators = []
        for line, there in groupby(alone[:_NAMED], key=lambda row: row.get("source")):
            operators.append(", ".join(row.fqn for row in there) + (f" ({line})" if line else ""))
        if alone:
            more = f" and {len(alone) - _NAMED} more" if alone[_NAMED:] else ""
            texts.append(f"only in {side}: {', '.join(operators)}{more}")
    return "; ".join(texts)


def both_sources(a: str | None, b: str | None) -> dict[str, str]:
    """The source lines of an operator on both sides, for a row's `source`; empty where none is known."""
    both = " → ".join(dict.fromkeys(filter(None, (a, b))))
    return {"source": both} if both else {}


def operators_of_both(a: Report, b: Report) -> tuple[Report, Report, list[str]]:
    """The reports without operators where one has none, which says nothing of its model; and a note if so."""
    has = [any(is_operator(row.fqn) for row in report.rows) for report in (a, b)]
    if has[0] == has[1] or not (a.rows and b.rows):
        return a, b, []
    a, b = (replace(report, rows=[row for row in report.rows if not is_operator(row.fqn)]) for report in (a, b))
    return a, b, [f"{'A' if has[0] else 'B'} alone was measured with --ops: its operators are left out"]


def _is_lone(row: Row) -> bool:
    return is_operator(row.fqn) and row.get("change") in ("added", "removed")

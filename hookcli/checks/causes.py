"""The order of findings: causes before what follows from them, by the declared order of checks and by data flow."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hookcli.checks.base import Check
from hookcli.checks.measurements import Measurements
from hookcli.table import SEVERITIES, Finding
from hookcli.table.names import is_within, owner_of


def causes_first(findings: Sequence[Finding], checks: Sequence[Check], measured: Measurements) -> list[Finding]:
    """The findings, each after its cause, which it names; the most severe come first.

    A finding may be a cause of another if the other's check `follows` its check, directly or by way of checks between
    them, and data flows from the one place to the other. The nearest of them is the cause: gradients depend on every
    module, and what lies further away is a cause of that cause, or of none.
    """
    flow = _Flow(measured, {check.id for check in checks if "grads" in check.needs})
    order = _order(checks)
    rank = {severity: number for number, severity in enumerate(SEVERITIES)}
    ordered = sorted(findings, key=lambda f: (rank.get(f.severity, len(rank)), order.get(f.check, len(order))))
    before = _all_causes(checks)
    nearest: dict[int, int | None] = {}
    for place, found in enumerate(ordered):
        causes = [
            other
            for other, cause in enumerate(ordered)
            if cause.check in before.get(found.check, ())
            and order[cause.check] < order[found.check]  # in a circle of checks, one comes first
            and flow.leads(cause, found)
        ]
        distances = {other: flow.distance(ordered[other], found) for other in reversed(causes)}
        nearest[place] = min(distances, key=distances.__getitem__, default=None)
    return [_with_cause(ordered[place], ordered, nearest[place]) for place in _listed(nearest)]


def _with_cause(found: Finding, findings: Sequence[Finding], cause: int | None) -> Finding:
    return found if cause is None else replace(found, cause=findings[cause].name)


def _listed(causes: Mapping[int, int | None]) -> list[int]:
    """The numbers, each after its cause, and what follows from a number right after it.

    A first cause stands where the first number that follows from it would.
    """
    follows: dict[int, list[int]] = defaultdict(list)
    for place, cause in causes.items():
        if cause is not None:
            follows[cause].append(place)

    def first_cause(place: int) -> int:
        cause = causes[place]
        return place if cause is None else first_cause(cause)

    def with_consequences(place: int) -> Iterator[int]:
        yield place
        for other in follows[place]:
            yield from with_consequences(other)

    firsts = dict.fromkeys(map(first_cause, causes))
    return [number for place in firsts for number in with_consequences(place)]


def _order(checks: Sequence[Check]) -> dict[str, int]:
    """The number of each check in an order in which checks come after those that find their causes."""
    by_id = {check.id: check for check in checks}
    found: dict[str, None] = {}

    def add(name: str, waiting: tuple[str, ...] = ()) -> None:
        if name in by_id and name not in waiting:  # checks of other distributions may follow each other in a circle
            for cause in by_id[name].follows:
                add(cause, (*waiting, name))
            found[name] = None

    for name in by_id:
        add(name)
    return {name: number for number, name in enumerate(found)}


def _all_causes(checks: Sequence[Check]) -> dict[str, set[str]]:
    """The ids of the checks that a check follows, with those that these follow."""
    direct = {check.id: check.follows for check in checks}
    found: dict[str, set[str]] = {}
    for name in direct:
        seen: set[str] = set()
        waiting = [*direct[name]]
        while waiting:
            cause = waiting.pop()
            if cause not in seen:
                seen.add(cause)
                waiting += direct.get(cause, ())
        found[name] = seen
    return found


class _Flow:
    """Tells whether data flows between two places, as far as the order of first calls tells.

    Outputs depend on what ran before them; gradients, which checks of the ids `backward` judge, also on what ran
    after. A part that never ran has no effect outside of itself.
    """

    def __init__(self, measured: Measurements, backward: set[str]) -> None:
        self._backward = backward
        rows = measured.inventory.rows if measured.inventory else ()
        calls = [row.fqn for row in rows if row["kind"] == "made"] or [r.fqn for r in rows if r["kind"] == "called"]
        self._ran = {fqn: number for number, fqn in enumerate(dict.fromkeys(calls))}
        self._idle = {row.fqn for row in rows if row["kind"] == "never_called"}

    def leads(self, cause: Finding, effect: Finding) -> bool:
        """True if data can get from the place of one finding to that of the other."""
        a, b = cause.fqn, effect.fqn
        if is_within(a, b) or is_within(b, a) or a == b:
            return True
        if self._never_ran(a) or self._never_ran(b):
            return False
        before, after = self._place(a), self._place(b)
        return effect.check in self._backward or before is None or after is None or before < after

    def distance(self, cause: Finding, effect: Finding) -> float:
        """The number of calls between the first ones at two places; infinite if a place is unknown."""
        a, b = self._place(cause.fqn), self._place(effect.fqn)
        return math.inf if a is None or b is None else abs(a - b)

    def _place(self, fqn: str) -> int | None:
        """The number of the first call of a module, or of that of a parameter or operator; None if it is not known."""
        return self._ran.get(fqn, self._ran.get(owner_of(fqn)))

    def _never_ran(self, fqn: str) -> bool:
        return fqn in self._idle or owner_of(fqn) in self._idle

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
    before = {check.id: _with_their_causes(check.follows, checks) for check in checks}
    nearest: dict[int, int | None] = {}
    for place, finding in enumerate(ordered):
        causes = [
            other
            for other, cause in enumerate(ordered)
            if cause.check in before.get(finding.check, ())
            and order[cause.check] < order[finding.check]  # in a circle of checks, one comes first
            and flow.leads(cause, finding)
        ]
        distances = {other: flow.distance(ordered[other], finding) for other in reversed(causes)}
        nearest[place] = min(distances, key=distances.__getitem__, default=None)
    named = ((ordered[place], nearest[place]) for place in _listed(nearest))
    return [one if cause is None else replace(one, cause=ordered[cause].name) for one, cause in named]


def _listed(causes: Mapping[int, int | None]) -> list[int]:
    """The numbers, each after its cause, and right after each number those that follow from it."""
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
    ordered: dict[str, None] = {}

    def add(name: str, waiting: tuple[str, ...] = ()) -> None:
        if name in by_id and name not in waiting:  # checks of other distributions may follow each other in a circle
            for cause in by_id[name].follows:
                add(cause, (*waiting, name))
            ordered[name] = None

    for name in by_id:
        add(name)
    return {name: number for number, name in enumerate(ordered)}


def _with_their_causes(ids: Sequence[str], checks: Sequence[Check]) -> set[str]:
    """These ids of checks, and those of every check that one of them follows, directly or not."""
    follows = {check.id: check.follows for check in checks}
    causes: set[str] = set()
    waiting = [*ids]
    while waiting:
        if (cause := waiting.pop()) not in causes:
            causes.add(cause)
            waiting += follows.get(cause, ())
    return causes


class _Flow:
    """Tells whether data can flow from one place to another, judged by the order in which modules first ran.

    An output depends on whatever ran before it. A gradient also depends on what ran after it, so for findings of the
    checks in `backward` the order does not matter. A module that never ran affects nothing but its own parts.
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

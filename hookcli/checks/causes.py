"""The order of findings: causes before what follows from them, by the declared order of checks and by data flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hookcli.checks.base import Check
from hookcli.checks.measurements import Measurements
from hookcli.report import SEVERITIES, Finding
from hookcli.report.names import is_within


def causes_first(findings: Sequence[Finding], checks: Sequence[Check], measured: Measurements) -> list[Finding]:
    """The findings, each after its causes and with `cause` naming the nearest of them; the most severe come first.

    A finding is a cause of another if the other's check `follows` its check, directly or by way of checks between
    them, and data flows from the one place to the other.
    """
    flow = _Flow(measured, {check.id for check in checks if "grads" in check.needs})
    order = _order(checks)
    rank = {severity: number for number, severity in enumerate(SEVERITIES)}
    ordered = sorted(findings, key=lambda f: (rank.get(f.severity, len(rank)), order.get(f.check, len(order))))
    before = _all_causes(checks)
    causes = {
        place: [
            other
            for other, cause in enumerate(ordered)
            if cause.check in before.get(found.check, ())
            and order[cause.check] < order[found.check]  # in a circle of checks, one comes first
            and flow.leads(cause, found)
        ]
        for place, found in enumerate(ordered)
    }
    return [_with_cause(ordered, place, causes[place]) for place in _Listed(causes).places()]


def _with_cause(findings: Sequence[Finding], place: int, causes: Sequence[int]) -> Finding:
    return replace(findings[place], cause=findings[causes[-1]].name) if causes else findings[place]


@dataclass
class _Listed:
    """Lists numbers so that each comes after its causes, and what follows from a number right after it."""

    causes: dict[int, list[int]]
    done: dict[int, None] = field(default_factory=dict)

    def places(self) -> list[int]:
        """The numbers in their new order."""
        for place in self.causes:
            self._add(place)
        return list(self.done)

    def _add(self, place: int) -> None:
        if place in self.done:
            return
        for cause in self.causes[place]:
            self._add(cause)
        self.done[place] = None
        for other, causes in self.causes.items():
            if place in causes and self.done.keys() >= set(causes):
                self._add(other)


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
    """Tells whether data flows between two places, as far as the order of the modules' first calls tells.

    Outputs depend on what ran before them; gradients, which checks of the ids `backward` judge, also on what ran
    after. A part that never ran has no effect outside of itself.
    """

    def __init__(self, measured: Measurements, backward: set[str]) -> None:
        self._backward = backward
        rows = measured.inventory.rows if measured.inventory else ()
        self._ran = {row.fqn: number for number, row in enumerate(r for r in rows if r["kind"] == "called")}
        self._idle = {row.fqn for row in rows if row["kind"] == "never_called"}

    def leads(self, cause: Finding, effect: Finding) -> bool:
        """True if data can get from the place of one finding to that of the other."""
        a, b = cause.fqn, effect.fqn
        if is_within(a, b) or is_within(b, a) or a == b:
            return True
        if self._never_ran(a) or self._never_ran(b):
            return False
        places = self._place(a), self._place(b)
        if effect.check in self._backward or None in places:
            return True
        return places[0] < places[1]  # type: ignore[operator]

    def _place(self, fqn: str) -> int | None:
        """The number of the first call of a module, or of a parameter's module; None if it is not known."""
        return self._ran.get(fqn, self._ran.get(fqn.rpartition(".")[0]))

    def _never_ran(self, fqn: str) -> bool:
        return fqn in self._idle or fqn.rpartition(".")[0] in self._idle

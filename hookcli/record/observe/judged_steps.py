"""Findings of the checks over the recorded steps of a model. Free of torch."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import replace

from hookcli.checks.base import Check
from hookcli.checks.judgement import SoFar
from hookcli.table import INFO, SEVERITIES, Finding


class JudgedSteps(SoFar):
    """The recorded steps of one model and phase, as the checks see them: findings stay, with their step.

    A check says whether its first finding counts, or its largest (`Check.over_steps`), or in any case a more severe
    one; of any other check, what holds now, or held in the last step that let it judge.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._step = 0
        self._kept: dict[str, tuple[int, list[Finding]]] = {}
        self._last: dict[str, list[Finding]] = {}
        self._is_bad = False

    def begin(self, step: int, *, complete: bool) -> None:
        """The checks now judge this step. One that did not come to its end is counted if there is no other."""
        self.steps = self.steps + 1 if complete else max(self.steps, 1)
        self._step, self._is_bad = step, False

    def add(self, check: Check, found: list[Finding]) -> list[Finding]:
        self._is_bad |= bool(found) and check.id in _BAD
        if self._is_bad and not check.over_steps and check.id in self._last:
            return self._last[check.id]
        self._last[check.id] = found
        if not check.over_steps:
            return found
        at, kept = self._kept.get(check.id, (self._step, []))
        worse = check.over_steps == "largest" and _largest(found) > _largest(kept)
        worse = worse or _most_severe(found) < _most_severe(kept)
        if found and (worse or not kept):
            self._kept[check.id] = self._step, found
            return found
        return self._dated(at, kept)

    def recall(self, check: Check) -> list[Finding] | None:
        if not check.over_steps or check.id not in self._last:
            return self._last.get(check.id)
        return self._dated(*self._kept.get(check.id, (self._step, [])))

    @property
    def found_at(self) -> dict[str, int]:
        """The step of each finding that stays, by check."""
        return {check: at for check, (at, found) in self._kept.items() if found}

    def _dated(self, at: int, kept: Sequence[Finding]) -> list[Finding]:
        """Findings that stay, with their step."""
        if at == self._step:
            return [*kept]
        names_it = re.compile(rf"step {at:,}\b")
        dated = (one.message if names_it.search(one.message) else f"{one.message} (step {at:,})" for one in kept)
        return [replace(one, message=message) for one, message in zip(kept, dated, strict=True)]

    def withdraw(self, check: str, places: Container[str]) -> None:
        """Take back the findings of a check at these places: a later step has shown that they are none."""
        step, findings = self._kept.pop(check, (0, []))
        if left := [one for one in findings if one.fqn not in places]:
            self._kept[check] = step, left

    def step_of(self, finding: Finding) -> int:
        at, kept = self._kept.get(finding.check, (self._step, []))
        return at if kept else self._step


_BAD = ("HK003", "HK005")  # whose step has NaN everywhere, which says nothing on the checks that keep no finding


def _most_severe(findings: Sequence[Finding]) -> int:
    """The place of the most severe of the findings in the order of severities, which begins with the worst."""
    return min(([*SEVERITIES, INFO].index(one.severity) for one in findings), default=len(SEVERITIES) + 1)


def _largest(findings: Sequence[Finding]) -> float:
    return max((one.value or 0.0 for one in findings), default=0.0)

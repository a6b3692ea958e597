"""What the checks have found in the recorded steps of a model so far. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hookcli.checks.base import Check
from hookcli.table import Finding
from hookcli.table.training import TrainingCourse


class JudgedSteps:
    """The recorded steps of one model and phase, as the checks see them: findings stay, with their step.

    A check says whether its first finding counts, or its largest (`Check.over_steps`); of any other, what holds now.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.course = TrainingCourse()
        self._kept: dict[str, tuple[int, list[Finding]]] = {}

    def so_far(self, step: int) -> Callable[[Check, list[Finding]], list[Finding]]:
        """A function that gives the findings of a check up to this step, those of the step among them."""

        def so_far(check: Check, found: list[Finding]) -> list[Finding]:
            if not check.over_steps:
                return found
            at, kept = self._kept.get(check.id, (step, []))
            worse = check.over_steps == "largest" and _largest(found) > _largest(kept)
            if found and (worse or not kept):
                self._kept[check.id] = step, found
                return found
            return [replace(one, message=f"{one.message} (step {at:,})") for one in kept]

        return so_far


def _largest(findings: Sequence[Finding]) -> float:
    return max((one.value or 0.0 for one in findings), default=0.0)

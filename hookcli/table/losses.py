"""The course of a model's loss over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from hookcli.table.formatting import counted


@dataclass(slots=True)
class LossCourse:
    """The first and the last loss of a run, and the steps whose loss was NaN or infinite."""

    steps: int = 0
    """Number of steps whose loss is known."""
    first: float | None = None
    last: float | None = None
    not_finite: int = 0
    """Number of steps whose loss was NaN or infinite."""
    first_not_finite: int = 0
    before: int = 0
    """Number of steps before that one."""
    kind: str = ""
    """"NaN" or "Inf", as the first such loss was."""

    @classmethod
    def of(cls, losses: Mapping[int, float]) -> Self:
        """The course of losses by step."""
        course = cls()
        for step, loss in losses.items():
            course.add(step, [loss])
        return course

    def add(self, first: int, losses: Iterable[float | None]) -> None:
        """Add the losses of the next steps, which begin with the step `first`."""
        for step, loss in enumerate(losses, first):
            if loss is None:
                continue
            self.steps += 1
            self.first, self.last = loss if self.first is None else self.first, loss
            if not math.isfinite(loss):
                if not self.not_finite:
                    self.first_not_finite, self.before = step, self.steps - 1
                    self.kind = "NaN" if math.isnan(loss) else "Inf"
                self.not_finite += 1

    def fault(self) -> str:
        """The steps whose loss was not finite: NaN from step 37 on (23 of 60 steps). Empty if there are none."""
        if not self.not_finite:
            return ""
        of = f"{self.not_finite:,} of {counted(self.steps, 'step')}"
        if self.not_finite == self.steps - self.before:
            return f"{self.kind} from step {self.first_not_finite:,} on ({of})"
        return f"{self.kind} in {of}, the first is step {self.first_not_finite:,}"


def faults(courses: Mapping[str, LossCourse]) -> str:
    """The first line on a run whose loss was not finite: Net: the loss was NaN from step 37 on (23 of 60 steps)."""
    lost = [(course.first_not_finite, name) for name, course in courses.items() if course.not_finite]
    if not lost:
        return ""
    name = min(lost)[1]
    others = f"; so was that of {counted(len(lost) - 1, 'more model')}" if lost[1:] else ""
    return f"{name}: the loss was {courses[name].fault()}{others}"

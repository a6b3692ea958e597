"""The course of a model's loss over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
    skipped: dict[int, float] = field(default_factory=dict)
    """Losses, not finite, at which the program skipped the optimizer's step, by the step that came next."""

    @classmethod
    def of(cls, losses: Mapping[int, float]) -> Self:
        """The course of losses by step."""
        course = cls()
        for step, loss in losses.items():
            course.add(step, [loss])
        return course

    def add(self, first: int, losses: Iterable[float | None], *, taken: bool = True) -> None:
        """Add the losses of the next steps, from the step `first` on; or one before it that no step has `taken`."""
        for step, loss in enumerate(losses, first):
            if loss is None:
                continue
            if not taken:
                self.skipped.setdefault(step, loss)
                continue
            self.steps += 1
            self.first, self.last = loss if self.first is None else self.first, loss
            if not math.isfinite(loss):
                if not self.not_finite:
                    self.first_not_finite, self.before = step, self.steps - 1
                    self.kind = _kind(loss)
                self.not_finite += 1

    @property
    def first_fault(self) -> int:
        """The first step at or before which a loss was not finite; 0 if there are none."""
        return min([*self.skipped, *[self.first_not_finite] * bool(self.not_finite)], default=0)

    @property
    def first_kind(self) -> str:
        """ "NaN" or "Inf", as the first loss was that was not finite; "" if there are none."""
        return self.kind if self.first_fault not in self.skipped else _kind(self.skipped[self.first_fault])

    def fault(self) -> str:
        """The steps whose loss was not finite: NaN from step 37 on (23 of 60 steps). Empty if there are none."""
        texts, of = [], f"{self.not_finite:,} of {counted(self.steps, 'step')}"
        if self.not_finite == self.steps - self.before > 0:
            texts.append(f"{self.kind} from step {self.first_not_finite:,} on ({of})")
        elif self.not_finite:
            texts.append(f"{self.kind} in {of}, the first is step {self.first_not_finite:,}")
        if self.skipped:
            step, others = min(self.skipped), len(self.skipped) - 1
            more = f" and {counted(others, 'more step')}" if others else ""
            kind = _kind(self.skipped[step])
            texts.append(f"{kind} before step {step:,}{more}; the program skipped the optimizer's step")
        return ", and ".join(texts)


def faults(courses: Mapping[str, LossCourse]) -> str:
    """The first line on a run whose loss was not finite: Net: the loss was NaN from step 37 on (23 of 60 steps)."""
    lost = [(course.first_fault, name) for name, course in courses.items() if course.fault()]
    if not lost:
        return ""
    name = min(lost)[1]
    others = f"; so was that of {counted(len(lost) - 1, 'more model')}" if lost[1:] else ""
    return f"{name}: the loss was {courses[name].fault()}{others}"


def _kind(loss: float) -> str:
    return "NaN" if math.isnan(loss) else "Inf"

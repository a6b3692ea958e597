"""The course of a model's loss over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from hookcli.table.formatting import counted, number

_JUMP, KNOWN = 10, 10
"""A loss jumps if it is so many times the highest before it, of at least so many."""


@dataclass(slots=True)
class LossCourse:
    """The first and the last loss of a run, the steps whose loss was NaN or infinite, and the first jump."""

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
    highest: float = -math.inf
    """The highest of the finite losses so far."""
    jumped: int | None = None
    """The first step whose loss was far above all before it."""
    jump: tuple[float, float] = 0.0, 0.0
    """The highest loss before that step, and its own."""
    jumped_on: str = ""
    """The ranks whose loss jumped, unless all did: "(mean of the ranks; 180.0 on rank 1)"."""
    skipped: dict[int, float] = field(default_factory=dict)
    """Losses, not finite, at which the program skipped the optimizer's step, by the step that came next."""

    @classmethod
    def of(cls, losses: Mapping[int, float], short: Collection[int] = ()) -> Self:
        """The course of losses by step; `short` are steps whose loss is a sum over fewer backward passes than usual."""
        course = cls()
        for step, loss in losses.items():
            course.add(step, [loss], short=short)
        return course

    def add(
        self, first: int, losses: Iterable[float | None], *, taken: bool = True, short: Collection[int] = ()
    ) -> None:
        """Add the losses of the next steps, from the step `first` on; or one before it that no step has `taken`.

        The loss of a `short` step is a sum over fewer backward passes than usual: it is neither the first nor the last.
        """
        for step, loss in enumerate(losses, first):
            if loss is None:
                continue
            if not taken:
                self.skipped.setdefault(step, loss)
                continue
            self.steps += 1
            if step not in short or not math.isfinite(loss):
                self.first, self.last = loss if self.first is None else self.first, loss
            if not math.isfinite(loss):
                if not self.not_finite:
                    self.first_not_finite, self.before = step, self.steps - 1
                    self.kind = _kind(loss)
                self.not_finite += 1
                continue
            if self.jumped is None and self.steps - self.not_finite > KNOWN and loss > _JUMP * self.highest > 0:
                self.jumped, self.jump = step, (self.highest, loss)
            self.highest = max(self.highest, loss)

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

    def jumps(self) -> str:
        """A loss far above all before it: jumped to 96.03 at step 37, 41 times the highest before. "" without one."""
        if self.jumped is None:
            return ""
        before, loss = self.jump
        where = f"at step {self.jumped:,} {self.jumped_on}".rstrip()
        return f"jumped to {number(loss)} {where}, {loss / before:,.0f} times the highest before"

    def found_on(self, losses: Mapping[int, float]) -> None:
        """Note on which ranks the loss jumped, from the ranks' losses at that step."""
        high = [str(rank) for rank, loss in losses.items() if loss > _JUMP * self.jump[0]]
        if 0 < len(high) < len(losses):
            of = f"{number(max(losses.values()))} on rank" if len(high) == 1 else "on ranks"
            self.jumped_on = f"(mean of the ranks; {of} {', '.join(high)})"


def faults(courses: Mapping[str, LossCourse]) -> str:
    """The first line on a run whose loss was not finite: Net: the loss was NaN from step 37 on (23 of 60 steps)."""
    lost = [(course.first_fault, name) for name, course in courses.items() if course.fault()]
    if not lost:
        return ""
    name = min(lost)[1]
    others = f"; so was that of {counted(len(lost) - 1, 'more model')}" if lost[1:] else ""
    return f"{name}: the loss was {courses[name].fault()}{others}"


def jumps(courses: Mapping[str, LossCourse]) -> str:
    """The first line on a run whose loss jumped: Net: the loss jumped to 96.03 at step 37, ... "" if none did."""
    jumped = [(course.jumped, name) for name, course in courses.items() if course.jumped is not None]
    return f"{(name := min(jumped)[1])}: the loss {courses[name].jumps()}" if jumped else ""


def _kind(loss: float) -> str:
    return "NaN" if math.isnan(loss) else "Inf"

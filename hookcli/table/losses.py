"""The course of a model's loss over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from hookcli.table.formatting import counted, number, setting

_JUMP, KNOWN = 10, 10
"""A loss jumps if it is so many times the highest before it, of at least so many."""
LARGE = 0.1
"""An update is large from this share of the weights on; a healthy one is a thousandth."""
_RUINS = 1.0  # the share from which on an update is taken for the cause of a loss that is so many times as high
EARLY = 64
"""Losses, the first ones, that are kept for that."""
_SOON = 20  # steps


class LargeUpdate(NamedTuple):
    """A large update: its step, its size in units of the weights, and the learning rate, if known."""

    step: int
    ratio: float
    rate: float | None

    def __str__(self) -> str:
        """the update at step 0 was 82.4 times the weights; learning rate 10."""
        times = f"{self.ratio:.0e}".replace("e+", "e") if self.ratio >= 1e4 else f"{self.ratio:.3g}"
        did = "left no finite weight" if math.isnan(self.ratio) else f"was {times} times the weights"
        rate = f"; learning rate {setting(self.rate)}" if self.rate is not None else ""
        return f"the update at step {self.step:,} {did}{rate}"


class BlowUp(NamedTuple):
    """A loss that an update has ruined: the highest until then, and the step and loss after it."""

    update: LargeUpdate
    before: float
    step: int
    loss: float


@dataclass(slots=True)
class LossCourse:
    """The first and the last loss of a run, the steps whose loss was NaN or infinite, and the first jump."""

    steps: int = 0
    """Number of steps whose loss is known."""
    unknown: int = 0
    """Number of steps whose loss is not known, such as those that hookcli let pass."""
    first: float | None = None
    last: float | None = None
    first_at: int | None = None
    """The step of the first loss."""
    ends: int = -1
    """The last step that was added, whether its loss is known or not."""
    known_at: int = -1
    """The last step whose loss is known."""
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
    updates: dict[int, LargeUpdate] = field(default_factory=dict)
    """Large updates, by step, as far as steps were recorded."""
    _first: dict[int, float] = field(default_factory=dict)
    """The first losses that were finite."""

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
        losses = [*losses]
        self.ends = max(self.ends, first + len(losses) - 1) if taken else self.ends
        for step, loss in enumerate(losses, first):
            if loss is None:
                self.unknown += taken
                continue
            if not taken:
                self.skipped.setdefault(step, loss)
                continue
            self.steps, self.known_at = self.steps + 1, step
            if step not in short or not math.isfinite(loss):
                self.first_at = step if self.first is None else self.first_at
                self.first, self.last = loss if self.first is None else self.first, loss
            if not math.isfinite(loss):
                if not self.not_finite:
                    self.first_not_finite, self.before = step, self.steps - 1
                    self.kind = _kind(loss)
                self.not_finite += 1
                continue
            if len(self._first) < EARLY:
                self._first[step] = loss
            if self.jumped is None and self.steps - self.not_finite > KNOWN and loss > _JUMP * self.highest > 0:
                self.jumped, self.jump = step, (self.highest, loss)
            self.highest = max(self.highest, loss)

    def updated(self, step: int, groups: Iterable[Mapping[str, Any]]) -> None:
        """Note the update of a recorded step, by the figures of its parameter groups, if it was large."""
        ratios = [(group["ratio"], group.get("lr")) for group in groups if group.get("ratio") is not None]
        known = [pair for pair in ratios if not math.isinf(pair[0])]  # of weights that were 0
        ratio, rate = max(known, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0], default=(0.0, None))
        if not ratio <= LARGE:
            self.updates.setdefault(step, LargeUpdate(step, ratio, rate))
            if len(self.updates) > 2 * EARLY:
                del self.updates[next(each for each in self.updates if each >= EARLY)]

    @property
    def known(self) -> bool:
        """True if any loss is known."""
        return bool(self.steps or self.skipped)

    @property
    def climbs(self) -> bool:
        """True if one of the first losses is so high that an update may have ruined it."""
        losses = list(self._first.values())
        return any(loss > _JUMP * losses[0] > 0 for loss in losses)

    def blow_up(self) -> BlowUp | None:
        """The first update larger than the weights after which the loss was far higher; None if there is none."""
        for update in sorted(self.updates.values()):
            before = max((loss for step, loss in self._first.items() if step <= update.step), default=0.0)
            after = ((n, x) for n, x in self._first.items() if update.step < n <= update.step + _SOON)
            ruined = next(((step, loss) for step, loss in after if loss > _JUMP * before > 0), None)
            if ruined and update.ratio >= _RUINS:
                return BlowUp(update, before, *ruined)
        return None

    @property
    def first_jump(self) -> int | None:
        """The first step whose loss jumped, whatever came before; None if none did."""
        steps = [self.jumped, blown.step if (blown := self.blow_up()) else None]
        return min((step for step in steps if step is not None), default=None)

    @property
    def jumped_first(self) -> bool:
        """True if the loss jumped before it was not finite."""
        jump = self.first_jump
        return jump is not None and jump <= self.first_fault

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
        of_known = f"{self.steps:,} losses that are known" if self.unknown else counted(self.steps, "step")
        texts, of = [], f"{self.not_finite:,} of {of_known}"
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
        """A loss far above all before it: jumped to 96.03 at step 37, 41 times the highest before. "" without one.

        After an update that ruined it: went from 1.6 to 5,292 at step 1: the update at step 0 was 82 times the weights.
        """
        blown = self.blow_up()
        if blown and (self.jumped is None or blown.step <= self.jumped):
            of = f"from {number(blown.before)} to {number(blown.loss)} at step {blown.step:,}"
            return f"went {of}: {blown.update}".replace("; learning rate", ", by a learning rate of")
        if self.jumped is None:
            return ""
        before, loss = self.jump
        where = f"at step {self.jumped:,} {self.jumped_on}".rstrip()
        update = self.updates.get(self.jumped - 1)
        cause = f"; {update}" if update else ""
        return f"jumped to {number(loss)} {where}, {loss / before:,.0f} times the highest before{cause}"

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
    others = f"; so was the loss of {counted(len(lost) - 1, 'more model')}" if lost[1:] else ""
    course = courses[name]
    before = f"; before, it {course.jumps()}" if course.jumped_first else ""
    return f"{name}: the loss was {course.fault()}{others}{before}"


def jumps(courses: Mapping[str, LossCourse]) -> str:
    """The first line on a run whose loss jumped: Net: the loss jumped to 96.03 at step 37, ... "" if none did."""
    jumped = [(step, name) for name, course in courses.items() if (step := course.first_jump) is not None]
    return f"{(name := min(jumped)[1])}: the loss {courses[name].jumps()}" if jumped else ""


def _kind(loss: float) -> str:
    return "NaN" if math.isnan(loss) else "Inf"

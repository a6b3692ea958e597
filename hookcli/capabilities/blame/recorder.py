"""The part of blame in a recorded run: which steps have a gradient that jumped, or was not finite."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from statistics import median

from hookcli.capabilities.blame.lines import APART, Blame, gradient_norm
from hookcli.capabilities.blame.row_norms import RowNorms
from hookcli.hooks.session import HookSession
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.observe.parts import BegunStep, RecorderPart, StepPart
from hookcli.table.losses import KNOWN

_RECENT = 100  # recorded steps that the median is taken of: gradients may come to be larger for good
_ABOVE = 3  # times the largest of these; one sample a step makes gradients of ten times the median again and again
_GROWTH = 4  # times the last of these: gradients that are small at first, as of LoRA, grow without a jump


class GradientCourse:
    """The norms of the gradients of each model's recorded steps."""

    def __init__(self) -> None:
        self._norms: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self._bad: set[str] = set()  # models

    def judge(self, step: RecordedStep, rows: RowNorms, scaled: bool) -> Blame | None:
        """Blame for a step whose gradient jumped, or is the first not finite; a GradScaler handles overflows itself."""
        grads = [row for row in step.parameter_grads() if row["numel"]]
        if not grads:
            return None
        norms = self._norms[step.model]
        usual = median(norms) if len(norms) >= KNOWN else None
        if any(row["nan"] + row["inf"] for row in grads):
            if scaled or step.model in self._bad:
                return None
            self._bad.add(step.model)
            return rows.blame(step.model, step.step, None, usual)
        whole = gradient_norm(step)
        limit = max(APART * usual, _ABOVE * max(norms), _GROWTH * norms[-1]) if usual else math.inf
        norms.append(min(whole, limit))  # so that the next jump is seen, too
        return rows.blame(step.model, step.step, whole, usual) if whole > limit else None


class Recorder(RecorderPart):
    """Knows the gradients of the steps before."""

    def __init__(self) -> None:
        self._course = GradientCourse()

    def begin_step(self, step: BegunStep) -> StepOfBlame | None:
        """A step begins that may have a gradient."""
        return StepOfBlame(self._course) if step.gradients else None


class StepOfBlame(StepPart):
    """Takes the norms of rows in a step, and blames some if its gradient stands out."""

    inside_compiled = True

    def __init__(self, course: GradientCourse) -> None:
        self._course, self._rows = course, RowNorms()

    def attach(self, session: HookSession) -> None:
        self._rows.attach(session)

    def backward_over(self) -> None:
        self._rows.passes += 1

    def lines(self, step: RecordedStep, *, scaled: bool) -> list[Blame]:
        """The blame, if there is one. Waits for an accelerator then."""
        trained = step.phase == "train" and step.complete
        blame = self._course.judge(step, self._rows, scaled) if trained else None
        return [blame] if blame else []

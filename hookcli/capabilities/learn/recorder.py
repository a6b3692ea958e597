"""The part of learn in a recorded run: whether gradients were cleared, and what the loss is a mean of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.learn.lines import Learning
from hookcli.hooks.torch_private.autograd import choices_of
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.observe.parts import BegunStep, RecorderPart, StepPart
from hookcli.record.observe.steps.losses import Gradients, gradients_of


@dataclass
class Course:
    """The recorded steps of a model: how many were judged, and how many of these began with old gradients."""

    judged: int = 0
    left: int = 0
    knows_loss: bool = False


class Recorder(RecorderPart):
    """Knows the recorded steps of each model."""

    def __init__(self) -> None:
        self._courses: dict[str, Course] = {}

    def begin_step(self, step: BegunStep) -> StepOfLearning | None:
        return StepOfLearning(self._courses) if step.gradients else None


class StepOfLearning(StepPart):
    """Looks at the gradients as each backward pass of a step begins, and as the optimizer takes them."""

    def __init__(self, courses: dict[str, Course]) -> None:
        self._courses = courses
        self._before: list[Gradients] = []  # of the only optimizer's parameters, as each backward pass began
        self._taken: Gradients | None = None
        self._several = False
        self._choices: list[tuple[int, int]] = []

    def backward_begins(self, roots: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
        self._several = self._several or len(optimizers) > 1
        self._before += [_gradients_for(one) for one in optimizers]
        self._choices.append(choices_of(roots[0]) if len(roots) == 1 else (0, 0))

    def optimizer_takes(self, optimizer: Optimizer) -> None:
        self._several = self._several or self._taken is not None
        self._taken = _gradients_for(optimizer)

    def lines(self, step: RecordedStep, *, scaled: bool) -> list[Learning]:
        """The line of this step, if it has something to say. Waits for an accelerator."""
        course = self._courses.setdefault(step.model, Course())
        left = self._left()
        if step.step and left is not None:
            course.judged += 1
            course.left += left
        told = course.knows_loss or len(self._choices) != 1
        items, classes = (0, 0) if told else self._choices[0]
        course.knows_loss |= classes > 0
        says = classes or (step.step and left)
        return [Learning(step.model, step.step, course.left, course.judged, classes, items)] if says else []

    def _left(self) -> bool | None:
        """True if the gradients that the optimizer took include those of the step before; None if that is not known.

        They do not if one was None as a backward pass began, or if all of the sample were zero.
        """
        if self._taken is None or self._several or not (self._before and self._taken.filled):
            return None
        return all(one.number >= self._taken.number and any(map(bool, one.filled)) for one in self._before)


def _gradients_for(optimizer: Optimizer) -> Gradients:
    return gradients_of(p for group in optimizer.param_groups for p in group["params"])

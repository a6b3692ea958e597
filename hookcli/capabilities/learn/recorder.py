"""The part of learn in a recorded run: what a training does with its gradients, batches, outputs and graphs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.learn.batches import Batches, Loaders, Taken, taken
from hookcli.capabilities.learn.graphs import Graphs, Mark
from hookcli.capabilities.learn.lines import UNSTEPPED, Learning, Untrained
from hookcli.capabilities.learn.outputs import Alike
from hookcli.capabilities.learn.still import Still, some_values
from hookcli.capabilities.learn.wiring import SeenParts, Wiring
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.autograd import choices_of, in_backward, labels_of, squares_of
from hookcli.record.file.record_lines import PartLine, RecordedStep
from hookcli.record.observe.parts import BegunStep, RecorderPart, StepPart
from hookcli.record.observe.steps.losses import Gradients, gradients_of
from hookcli.table.stats import norm
from hookcli.tensors import tree

_TENSORS = 16  # of a step, whose checksums are compared
_OFTEN = 0.5  # recorded forwards without gradients for each recorded step
_TWO = 2  # labels
_PASSES = 5  # backward passes, after which an optimizer should have made a step


@dataclass
class Course:
    """The recorded steps of a model: how many were judged, how many of these began with old gradients, and the rest."""

    batches: Batches
    judged: int = 0
    left: int = 0
    knows_loss: bool = False
    alike: int = 0
    cleared: int = 0
    labels: set[int] = field(default_factory=set)
    labelled: int = 0
    stepped: bool = False
    """True if an optimizer was about to make a step."""

    graphs: Graphs = field(default_factory=Graphs)
    still: Still = field(default_factory=Still)
    wiring: Wiring = field(default_factory=Wiring)

    def count_labels(self, of_step: Sequence[Tensor]) -> int:
        """The number of recorded steps whose labels were known, if all were one label. Waits for an accelerator."""
        self.labelled += bool(of_step)
        for labels in of_step if len(self.labels) < _TWO else ():
            self.labels.update(labels.tolist())
        return self.labelled if len(self.labels) == 1 else 0


class Recorder(RecorderPart):
    """Knows the recorded steps of each model."""

    def __init__(self) -> None:
        self._trained = self._evaluated = 0
        self._loaders = Loaders()
        self._courses: dict[str, Course] = defaultdict(lambda: Course(Batches(self._loaders)))

    def batch_taken(self, iterator: object) -> None:
        if torch.is_grad_enabled():
            self._loaders.take(iterator)

    def begin_step(self, step: BegunStep) -> StepOfLearning | None:
        self._trained += step.training
        self._evaluated += not step.training
        return StepOfLearning(self, self._courses[step.model], step) if step.gradients else None

    @property
    def targets_of_models(self) -> bool:
        """True if models run without gradients about as often as they are trained: targets may be what they return."""
        return self._evaluated > _OFTEN * self._trained


class StepOfLearning(StepPart):
    """Looks at the batch, the modules that run, the gradients as each backward pass begins and the optimizer takes."""

    def __init__(self, recorder: Recorder, course: Course, begun: BegunStep) -> None:
        self._recorder, self._course, self._begun = recorder, course, begun
        self._before: list[Gradients] = []  # of the only optimizer's parameters, as each backward pass began
        self._taken: Gradients | None = None
        self._several = False
        self._names: list[str] = []
        self._values: list[Tensor] = []
        self._choices: list[tuple[int, int]] = []
        self._spread: Tensor | None = None
        self._broadcast = ""
        self._labels: list[Tensor] = []
        self._batch: list[Taken] = []
        self._parts = SeenParts()
        self._alike = Alike()
        self._marks: list[ref[Mark]] = []

    def attach(self, session: HookSession) -> None:
        self._values = some_values(self._begun.module)
        session.forward_pre(self.enter)
        session.forward(self.leave)

    def enter(self, event: HookEvent) -> None:
        """Look at what the model receives, and at the modes of its modules; not again in a recomputation."""
        if event.fqn or in_backward():
            return
        batches, received = self._course.batches, tree.received(event.args, event.kwargs)
        for x in filter(tree.is_plain, islice(received, _TENSORS)):
            self._alike.receive(x)
            if len(self._batch) < _TENSORS and not (batches.differ or x.is_complex()):
                batches.search(x)
                self._batch.append(taken(x))
        self._parts.look(self._begun.module)

    def leave(self, event: HookEvent) -> None:
        """Note a module that ran, and look at what the model returns."""
        if torch.is_grad_enabled():
            self._parts.ran.setdefault(event.fqn)
        if not event.fqn:
            outputs = tree.tensors(event.output)
            self._mark(next((x.grad_fn for x in outputs if x.grad_fn is not None), None))
            self._alike.returned(outputs)

    def _mark(self, node: Node | None) -> None:
        if node is not None:
            self._marks.append(Mark.on(node))

    def backward_begins(self, roots: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
        self._several = self._several or len(optimizers) > 1
        self._before += [_gradients_for(one) for one in optimizers]
        self._names = [type(one).__name__ for one in optimizers]
        self._parts.hold(optimizers)
        alone = len(roots) == 1
        self._choices.append(choices_of(roots[0]) if alone else (0, 0))
        squares = squares_of(roots[0]) if alone and len(self._choices) == 1 else None
        self._spread = variance(squares[1]) if squares else None
        self._broadcast = broadcast_to(*squares) if squares else ""
        labels = labels_of(roots[0]) if alone else None
        if labels is not None and tree.is_plain(labels) and labels.numel():
            self._labels.append(torch.stack(labels.aminmax()))
        for root in roots:
            self._mark(root.grad_fn)

    def backward_over(self) -> None:
        self._parts.reach(self._begun.module)

    def optimizer_takes(self, optimizer: Optimizer) -> None:
        self._several = self._several or self._taken is not None
        self._taken = _gradients_for(optimizer)

    def lines(self, step: RecordedStep, *, scaled: bool) -> list[PartLine]:
        """The lines of this step, if there was a backward pass. Waits for an accelerator."""
        if not self._choices:
            return []
        course = self._course
        course.stepped = course.stepped or self._taken is not None
        if not step.complete:
            return [] if scaled else self.unstepped(step)
        left = self.began_with_old()
        if step.step and left is not None:
            course.judged += 1
            course.left += left
        told = course.knows_loss or len(self._choices) != 1
        items, classes = (0, 0) if told else self._choices[0]
        course.knows_loss |= classes > 0
        course.batches.add(self._batch)
        course.graphs.add(step.step, self._marks)
        alike = self._alike.judge()
        course.alike = course.alike if alike is None else course.alike + 1 if alike else 0
        course.cleared = course.cleared + 1 if self.took_none(step) else 0
        fields: dict[str, Any] = {
            "left": course.left,
            "judged": course.judged,
            "classes": classes,
            "items": items,
            "spread": self.spread(),
            "broadcast": self._broadcast,
            "one_label": course.count_labels(self._labels),
            "alike": course.alike,
            "cleared": course.cleared,
            **course.batches.fields(),
            **course.graphs.fields(),
            **course.still.fields(step, self._values),
            **reach(step),
        }
        untrained = course.wiring.add(self._begun, step.step, self._parts)
        return [*untrained, Learning(step.model, step.step, **fields)]

    def took_none(self, step: RecordedStep) -> bool:
        """True if backward passes left gradients, and the optimizer found none, or zeros."""
        if self._taken is None or not self._parts.reached:
            return False
        had = any(row.get("unclipped_grad") for row in step.rows("optimizer"))
        return not self._taken.number or (had and not any(map(bool, self._taken.filled)))

    def spread(self) -> float | None:
        """The variance of the targets of a squared error; None where it does not tell the level of guessing."""
        if self._spread is None or self._recorder.targets_of_models:
            return None
        spread = float(self._spread)
        return spread if math.isfinite(spread) else None

    def unstepped(self, step: RecordedStep) -> list[PartLine]:
        """The line on optimizers that have made no step, after so many backward passes in the first one."""
        if self._course.stepped or len(self._choices) < _PASSES or not self._names:
            return []
        return [Untrained(step.model, step.step, UNSTEPPED, [self._names[0]], len(self._choices))]

    def began_with_old(self) -> bool | None:
        """True if the gradients that the optimizer took include those of the step before; None if that is not known.

        They do not if one was None as a backward pass began, or if all of the sample were zero.
        """
        if self._taken is None or self._several or not (self._before and self._taken.filled):
            return None
        return all(one.number >= self._taken.number and any(map(bool, one.filled)) for one in self._before)


def _gradients_for(optimizer: Optimizer) -> Gradients:
    return gradients_of(p for group in optimizer.param_groups for p in group["params"])


def variance(targets: Tensor) -> Tensor | None:
    """The variance of targets over the rows of a batch. Waits for nothing."""
    known = tree.is_plain(targets) and targets.dim() and targets.is_floating_point()
    rows = targets.detach() if known else None
    if rows is not None and rows.stride(0) == 0:  # which broadcasting has repeated
        rows = rows[0]
    if rows is None or not rows.dim() or len(rows) < 2:
        return None
    with torch.no_grad():
        return rows.var(0, unbiased=False).mean()


def broadcast_to(outputs: Tensor, targets: Tensor) -> str:
    """The shape to which outputs and targets were broadcast, if each was along a dimension of the other; else ""."""
    dims = [{n for n, size in enumerate(x.shape) if size > 1 and x.stride(n) == 0} for x in (outputs, targets)]
    return tree.shape_text(targets) if all(dims) and dims[0].isdisjoint(dims[1]) else ""


def reach(step: RecordedStep) -> dict[str, float]:
    """By how much the loss could fall in a step to first order, the gradient's norm, and the learning rate.

    Empty if not measured.
    """
    groups = step.rows("optimizer")
    pairs = [(row.get("unclipped_grad") or row.get("param_grad"), row.get("update")) for row in groups]
    if not pairs or any(None in pair for pair in pairs):
        return {}
    most = norm([grad for grad, _ in pairs]) * norm([update for _, update in pairs])
    taken = [row.get("param_grad") for row in groups]
    gradient = None if None in taken else norm(taken)
    known = {"reach": most, "gradient": gradient, "rate": groups[0].get("lr")}
    return {name: x for name, x in known.items() if isinstance(x, float) and math.isfinite(x)}

"""One step of a model that is observed: its states, from its first forward until it is handed on.

A step of a model with optimizers ends when all of them have stepped; of one without, with its backward pass; without
gradients, with the forward. It ends unfinished when an exception, the program's next step or its end comes first.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.hooks.gradients.tensor_hooks import GradArrivals
from hookcli.hooks.torch_private.frames import frame_of_call, keywords
from hookcli.hooks.torch_private.looked_programs import own_programs_in_backward
from hookcli.record.file.record_lines import SHARDED, RecordedStep
from hookcli.record.observe.inside import Inside
from hookcli.record.observe.measurements.step_measurements import SharedBySteps, StepMeasurements
from hookcli.record.observe.measurements.step_times import StepTimes
from hookcli.record.observe.models.model import ObservedModel
from hookcli.record.observe.optimizers.optimizer_steps import Snapshot
from hookcli.record.observe.steps.losses import Losses
from hookcli.table.meta import Meta
from hookcli.tensors import tree
from hookcli.tensors.torch_private import version
from hookcli.tensors.tree import Args, Kwargs

# Of a step with more forwards (a loop over time, a rollout) the first ones are observed.
MOST_FORWARDS = 64
MOST_PASSES = 1024
"""Backward passes of a step that are observed, whatever they cost; of more the losses are added up."""


class State(Enum):
    """States of an observed step."""

    IN_FORWARD = "a forward of the model runs, with hooks on its modules"
    WAITING = "for another forward, a backward pass, or its optimizers; only tensors carry hooks"
    CLOSED = "handed on, or dropped: no hooks are left"


class Position(NamedTuple):
    """The place of a step in the program; `kept`: whether it goes into the record."""

    phase: str
    number: int
    forward: int | None
    kept: bool


class ObservedStep:
    """Hooks a model for one step. Keeps the model alive until it is closed."""

    def __init__(
        self,
        model: ObservedModel,
        module: nn.Module,
        shared: SharedBySteps,
        position: Position,
        inside: Inside | None,
    ) -> None:
        self.model = model
        self.module = module
        self.phase, self.number, self.forward, self.kept = position
        self.state = State.WAITING
        self.forwards, self.observed_forwards = 1, 0
        self.stepped: set[int] = set()
        self.goes_on = False
        """True if a forward followed an optimizer's step, for another optimizer that steps in turns with it."""
        self.seconds: float | None = None
        self.notes: dict[str, None] = {}
        self.losses = Losses(module)
        self.times = StepTimes(shared.clock, model.ended)
        self._make = partial(StepMeasurements, model, module, training=self.phase == "train")
        self._inside = inside if inside and not model.hidden and inside.wants(model.name, module) else None
        self.measured = self._make(shared, self.times, inside=self._inside is not None)
        self._shared = shared
        self._own_programs = ExitStack()
        self._complete = True
        self._counts_alone = False
        self._arrivals = GradArrivals()

    # Forwards.

    def begin_forward(self, module: nn.Module, args: Args, kwargs: Kwargs | None = None) -> None:
        """Put hooks on the modules. `module` is the one called: the model, a wrapper around it, or a part."""
        self.state = State.IN_FORWARD
        if self._inside and not self._can_look_inside(self._inside, module, args, kwargs):
            if self.observed_forwards:  # the forwards before this one were seen inside compiled parts
                return
            self._inside, self.measured = None, self._make(self._shared, self.times)
        if not self.observed_forwards:
            self.measured.start(module)
        self.measured.begin_forward(module, args)
        self.observed_forwards += 1
        if self._inside:
            self._own_programs.enter_context(self._inside.within(self.model.name, frame_of_call(sys._getframe())))
        self.times.begin("forward")

    def _can_look_inside(self, inside: Inside, called: nn.Module, args: Args, kwargs: Kwargs | None) -> bool:
        def make() -> StepMeasurements:
            unguarded = replace(self._shared, guard=lambda hook: hook)
            return self._make(unguarded, StepTimes(self._shared.clock, None), inside=True)

        given = args, keywords(called) if kwargs is None else kwargs
        return inside.try_out(self.model.name, self.module, called, given, make)

    def end_forward(self, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        self.times.end("forward")
        self.detach()
        if self.state is not State.CLOSED:  # as another thread may have done meanwhile
            self._arrivals.watch(output)
            self.measured.describe(args, kwargs)

    def detach(self) -> None:
        """Take the hooks off the modules, however the forward ended."""
        if self.state is State.IN_FORWARD:
            self.state = State.WAITING
        self._own_programs.close()
        self.measured.detach()

    def takes_forward(self, number: int) -> bool:
        """True if a forward with gradients belongs to this step, given the number of the model's current step."""
        goes_on = not self.stepped or self.model.mid_step
        return self.number == number and goes_on and self.model.has_optimizer

    # Backward passes.

    def await_backward(self) -> None:
        """Await the backward passes of a model whose forward no hook sees, in this thread."""
        self.forwards = 0
        self.measured.session.modules.thread = threading.get_ident()

    def waits_here(self) -> bool:
        """True if its forwards ran in this thread, and are over."""
        return self.measured.session.modules.thread == threading.get_ident() and self.state is State.WAITING

    def begin_backward(self, roots: Sequence[Tensor], losses: Sequence[Tensor], *, goes_on: bool) -> None:
        """Put hooks on the modules again: checkpointed modules run again inside a backward pass.

        `losses` are the roots as they were before a GradScaler scaled them.
        A pass is only counted, with its loss, if there were many, or if the step is not to observe more (`goes_on`) and
        each forward that it has observed has had one: its optimizer may never step.
        """
        self.losses.begin_pass()
        passes, observed = self.measured.passes, self.observed_forwards
        self._counts_alone = observed < self.forwards and (
            passes >= MOST_PASSES or (passes >= observed and not goes_on)
        )
        self.measured.begin_backward(roots, losses, counts_alone=self._counts_alone)
        if self._inside and not self._counts_alone:
            self._own_programs.enter_context(own_programs_in_backward(self.module))
        self.times.begin("backward")

    def end_backward(self, terms: Sequence[Tensor] | None, scaler: object, *, counts: bool) -> None:
        """End a backward pass; its loss is the sum of `terms`, if known. `counts`: it leaves gradients in the model."""
        self.times.end("backward")
        self.measured.backward_over(scaler, counts_alone=self._counts_alone)
        if counts and terms is not None:
            self.losses.add(terms)
        elif counts:
            self.notes[_NO_NUMBER] = None

    @property
    def arrived(self) -> object:
        """A state that changes as gradients arrive: their number, and those held if a forward went without hooks."""
        arrived = sum(session.arrived for session in self.measured.sessions) + self._arrivals.times
        if not self.model.hidden and self.observed_forwards == self.forwards:
            return arrived
        return arrived, [(id(grad), version(grad)) for grad in tree.gradients(self.module.parameters())]

    @property
    def sees_gradients(self) -> bool:
        """True if it would notice a backward pass through the model."""
        return bool(
            self.model.hidden or self._arrivals or any(s.tensor_grads.hooks.handles for s in self.measured.sessions)
        )

    @property
    def abandoned(self) -> bool:
        """True if the gradients that it waits for can't come any more: the graph of its forwards is freed."""
        gone = self._arrivals.gone() and all(session.tensor_grads.hooks.gone() for session in self.measured.sessions)
        return gone and not self.model.has_optimizer

    def gets_gradients(self, inputs: set[int] | None) -> bool:
        """True if a pass limited to `inputs` (ids; None for all) leaves gradients; always without an optimizer."""
        needing = (id(p) for p in self.module.parameters() if p.requires_grad)
        return any(inputs is None or key in inputs for key in needing) or not self.model.has_optimizer

    # Optimizers.

    def end_optimizer_step(self, optimizer: Optimizer) -> bool:
        """Note an optimizer's step. Returns whether all of the model's optimizers have made theirs."""
        self.stepped.add(id(optimizer))
        self.losses.taken(id(optimizer))
        return all(id(other) in self.stepped for other in self.model.optimizers())

    def record_update(self, optimizer: Optimizer, snapshot: Snapshot) -> None:
        """Measure an optimizer's step by itself, for a model whose forward no hook sees."""
        self.forwards = 0
        self.measured.take_groups(optimizer)
        self.measured.take_gradients(optimizer)
        self.measured.take_updates(snapshot)

    def updated_by_hand(self, snapshot: Snapshot) -> None:
        """Measure what the program itself has changed in the weights since the model's forward before this step."""
        if self.measured.parameters.take_updates(snapshot, by_hand=True):
            self.notes[_BY_HAND] = None
        else:  # nothing has changed, and no optimizer was to change it
            self.measured.parameters.updates.clear()

    # The end.

    def leave_unfinished(self, why: str = "") -> None:
        """Mark the step as not finished; by default since the program ended, or moved on."""
        self._complete = False
        self.notes[why or _UNFINISHED] = None

    def remove_hooks(self) -> None:
        self.state = State.CLOSED
        self._arrivals.remove()
        self._own_programs.close()
        self.measured.remove()

    def recorded(self) -> RecordedStep:
        """The step as it goes into the record. Waits for an accelerator."""
        meta: Meta = {"phase": self.phase, "step": self.number, "complete": self._complete}
        if self._inside and (said := self._inside.said(self.model.name)):
            meta["compiled"] = said
        losses = self.losses.since_cleared()
        reports = self.measured.reports(meta, sum(losses) if losses else None, self.losses.by_optimizer())
        if any(row.get("sharded") for report in reports for row in report.rows):
            self.notes[SHARDED] = None
        return RecordedStep(
            model=self.model.name,
            phase=self.phase,
            step=self.number,
            reports=reports,
            forward=self.forward,
            forwards=self.forwards,
            observed_forwards=self.observed_forwards,
            losses=losses,
            seconds=self.seconds,
            notes=(*self.notes, *self.measured.notes()),
            complete=self._complete,
            weights=self.measured.digest(),
            errors=sum(report.totals["errors"] for report in reports if report.probe == "check"),
        )


_NO_NUMBER = "backward() was called on a tensor that is not a single number: it is not part of the loss"
_BY_HAND = "no optimizer updates this model: |dw| is the change of its weights since its forward before this one"
_UNFINISHED = "the last step was never completed"

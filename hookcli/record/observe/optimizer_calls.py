"""Turns the steps of optimizers into the ends of observed steps, and counts them for their models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from torch.optim.optimizer import Optimizer

from hookcli.record.observe.models.model import ObservedModel, capturing
from hookcli.record.observe.models.models import ObservedModels
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps, ProgramSteps, Snapshot, parameter_ids
from hookcli.record.observe.steps.open_steps import OpenSteps
from hookcli.record.observe.steps.step import ObservedStep, Position, State
from hookcli.table.formatting import counted

_LOOKED_AT = 16
"""First steps of an optimizer, in which its parameters are looked for in all models: that takes long."""


class OptimizerCalls:
    """Follows each call of `Optimizer.step`; its end is reported unless an exception comes first."""

    def __init__(self, optimizer_steps: OptimizerSteps, models: ObservedModels, steps: OpenSteps) -> None:
        self._optimizer_steps = optimizer_steps
        self._models = models
        self._steps = steps
        self.program_steps = ProgramSteps()
        self._snapshots: dict[int, Snapshot] = {}  # by optimizer, while it steps
        self.passed_of: Counter[str] = Counter()
        """The number of steps of each model that were not followed."""

    def begin(self, optimizer: Optimizer, closure: bool) -> Callable[[], None] | None:
        """Begin an optimizer's step. Returns a function to call when it is over or has failed; None if not needed."""
        self._optimizer_steps.add(optimizer)
        self._snapshots.pop(id(optimizer), None)  # of a step that an exception ended
        for step in self._steps.of(optimizer):
            if step.goes_on and id(optimizer) in step.stepped:  # the others do not step in turns with it after all
                self._steps.close_finished(step)
        steps = self._steps.of(optimizer)
        for step in steps:
            step.times.begin_optimizer()
            step.measured.scaling.step_begins(optimizer)
            step.measured.take_groups(optimizer)
            if not closure:
                step.measured.take_gradients(optimizer)
                self._steps.look(step)
        if not steps:  # the next one may be recorded all the same; unknown models go by the optimizer's own count
            numbers = [model.next_step_of(optimizer) for model in self._models.of(optimizer)]
            if not any(map(self._steps.schedule.records, numbers or [self._optimizer_steps.count(optimizer)])):
                return None
        if capturing():
            return None
        snapshot = Snapshot.of(optimizer, closure, copies="updates" in self._steps.plan.probes)
        self._snapshots[id(optimizer)] = snapshot
        return partial(self._close_if_failed, optimizer, snapshot)

    def _close_if_failed(self, optimizer: Optimizer, snapshot: Snapshot) -> None:
        if self._snapshots.get(id(optimizer)) is not snapshot:  # `end` came first
            return
        del self._snapshots[id(optimizer)]
        for step in self._steps.of(optimizer):
            if step.state is State.WAITING:
                step.leave_unfinished(_FAILED)
                self._steps.close(step)

    def end(self, optimizer: Optimizer) -> None:
        snapshot = self._snapshots.pop(id(optimizer), None)
        steps = self._steps.of(optimizer)
        for step in steps:
            step.times.end_optimizer()
            if snapshot is not None:
                if snapshot.closure:  # which may have opened the step
                    step.measured.take_groups(optimizer)
                    step.measured.take_gradients(optimizer)
                step.measured.take_updates(snapshot)
        models = self._models.of(optimizer)
        of_models = {model: model.next_step_of(optimizer) for model in models}
        numbers = {model.name: number for model, number in of_models.items()}
        self._steps.parts.tell("optimizer_stepped", "", of_models, optimizer)
        self._steps.losses.stepped(numbers, optimizer)
        for model in models:
            model.training.lap()
            model.stepped(optimizer)
        self._optimizer_steps.stepped(optimizer)
        count = self._optimizer_steps.count(optimizer)
        self._steps.schedule.optimizer_stepped(max(numbers.values(), default=0), count)
        if models or not self._models.narrowed:
            self.program_steps.stepped(optimizer, numbers)
        self._look_for_stale(optimizer, models, recorded=bool(steps))
        notes = self._parameters_elsewhere(optimizer) if steps else {}
        for step in steps:
            step.notes |= notes
            if step.end_optimizer_step(optimizer):
                self._steps.close_finished(step)
        if snapshot is not None:
            self._record_hidden(optimizer, snapshot, steps)
            models = self._models.of(optimizer)  # perhaps one that was found just now
        for model in models:
            self._await_hidden(model)
            model.ended = self._steps.clock.mark()

    @property
    def alone(self) -> bool:
        """True if one optimizer makes all steps."""
        return self._optimizer_steps.alone

    def passed(self, models: Iterable[ObservedModel], steps: int, optimizer: Optimizer | None) -> None:
        """Count steps of the only optimizer, which may be gone by now, that were not followed, after one that was."""
        for model in models:
            self._steps.losses.passed(model.name, model.steps_passed(steps))
            self.passed_of[model.name] += steps
        if optimizer is not None:
            self._optimizer_steps.stepped(optimizer, steps)
        self.program_steps.passed(steps)

    def _look_for_stale(self, optimizer: Optimizer, models: Sequence[ObservedModel], *, recorded: bool) -> None:
        """Note parameters that the optimizer has in no module that has run; not if only one model is observed."""
        begins = self._optimizer_steps.count(optimizer) <= _LOOKED_AT
        if (recorded or begins) and not self._models.narrowed:
            ran = (model for model in self._models.alive() if not model.hidden)
            modules = [module for model in ran if (module := model.module) is not None]
            self._optimizer_steps.look_for_stale(optimizer, {id(p) for m in modules for p in m.parameters()})
            self._optimizer_steps.look_for_idle(optimizer, [model.name for model in models if not model.hidden])

    def _parameters_elsewhere(self, optimizer: Optimizer) -> dict[str, None]:
        """A note on parameters in no model that has run, such as a loss's; none if only one model is observed."""
        if self._models.narrowed:
            return {}
        models = [module for model in self._models.of(optimizer) if (module := model.module) is not None]
        left = len(parameter_ids(optimizer).difference(*({id(p) for p in module.parameters()} for module in models)))
        what = f"{type(optimizer).__name__} has {counted(left, 'parameter')} in no module that has run so far"
        return {f"{what}; not shown": None} if left else {}

    def _await_hidden(self, model: ObservedModel) -> None:
        """Open the next step of a model whose forward no hook sees, for its losses, if it is observed."""
        if model.hidden and self._steps.training(model) is None:
            position = Position("train", number := model.step(), None, self._steps.schedule.records(number))
            if self._steps.wants(position) and (step := self._steps.open(model, position)) is not None:
                step.await_backward()

    def _record_hidden(self, optimizer: Optimizer, snapshot: Snapshot, steps: Iterable[ObservedStep]) -> None:
        """Record the updates of models whose forward no hook sees, and whose step was not awaited."""
        awaited = [step.model for step in steps]
        for model in self._models.hidden(optimizer):
            if model in awaited:
                continue
            number = model.step() - 1
            position = Position("train", number, None, self._steps.schedule.records(number))
            if position.kept and (step := self._steps.open(model, position)) is not None:
                step.record_update(optimizer, snapshot)
                self._steps.close_finished(step)

    def scaler_stepped(self, optimizer: Optimizer) -> None:
        """A GradScaler has let the optimizer step, or has skipped the step."""
        models = self._models.of(optimizer)
        self._steps.losses.skipped()
        for model in models:
            model.training.lap()
        for step in self._steps.of(optimizer):
            if id(optimizer) not in step.stepped:
                step.measured.scaling.step_skipped()
                step.measured.take_gradients(optimizer)
                if step.end_optimizer_step(optimizer):
                    self._steps.close_finished(step)
        for model in models:
            model.ended = self._steps.clock.mark()


_FAILED = "the optimizer's step failed: the step is recorded up to there"

"""The observed steps that are open: the one place where steps are opened, searched, closed and handed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from torch.optim.optimizer import Optimizer

from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.compilations import CompilationLog
from hookcli.hooks.session_core import CallbackGuard
from hookcli.probes.parameters import recorded_settings
from hookcli.record.file.record_lines import ModelSettings, NonFinite, PartLine, RecordedStep, StepLosses
from hookcli.record.observe.ending import Ending
from hookcli.record.observe.epochs import Epochs
from hookcli.record.observe.inside import Inside
from hookcli.record.observe.measurements.step_measurements import SharedBySteps
from hookcli.record.observe.models.model import ObservedModel
from hookcli.record.observe.parts import Parts, RecordedRun, make_recorders
from hookcli.record.observe.recording_plan import RecordingPlan, Schedule
from hookcli.record.observe.steps.every_loss import EveryLoss
from hookcli.record.observe.steps.step import ObservedStep, Position, State
from hookcli.record.observe.steps.step_view import OpenStepView

# Steps that wait for a backward pass or an optimizer that may never come keep their models alive.
_MOST_OPEN = 8
_READ = 10  # steps whose losses are read at once for parts, on an accelerator
T = TypeVar("T")


class StepSink(Protocol):
    """Receives what is recorded.

    An OSError (it can take no more) ends the recording, while the program's steps and forwards are still counted. Any
    other exception ends the observation. Neither ends the program. `path` is the record's.
    """

    path: Path

    def begin_step(self) -> None:
        """A step begins that is observed."""

    def step(self, step: RecordedStep) -> None:
        """A recorded step is over."""

    def losses(self, losses: StepLosses) -> None:
        """The losses of the next steps of a model."""

    def settings(self, settings: ModelSettings) -> None:
        """The settings of a model's modules, before its first step."""

    def non_finite(self, value: NonFinite) -> None:
        """The first non-finite value was found."""

    def of_part(self, line: PartLine) -> None:
        """A part of a capability has something to say of a step, mostly of that which comes next."""

    def part_failed(self, line: str, error: Exception) -> None:
        """A part of the observation failed, and is left out from now on. Must not raise."""

    def gave_up(self, error: Exception) -> None:
        """hookcli failed, and observes no more. Must not raise."""


class OpenSteps:
    """Owns the open steps, and hands them on to the sink as they close. `guard` wraps their hooks."""

    def __init__(
        self,
        plan: RecordingPlan,
        sink: StepSink,
        guard: CallbackGuard,
        clock: ProgramClock,
        compilations: CompilationLog,
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.epochs = Epochs()
        self.parts = Parts(self._part_failed, make_recorders(plan))
        self._parts_want = self.parts.hear("wants")
        self.schedule = Schedule(plan, clock, self.epochs, for_all=self._parts_want)
        self._sink = sink
        self._shared = SharedBySteps(plan, guard, clock, self.parts)
        self.ending = Ending()
        self.losses = EveryLoss(partial(self._hand_on, sink.losses), self._loss_found, self.schedule.look_after)
        self._open: list[ObservedStep] = []
        if self.parts.hear("loss_read"):
            self.losses.tell_read = lambda model, *read: self.parts.tell("loss_read", model, model, *read)
            self.losses.at_once = _READ
        self._described: set[str] = set()
        self.failed: list[tuple[str, str]] = []
        """Parts of the observation that have failed: the model's name, or "", and a line on it."""
        run = RecordedRun(self._write, lambda: sink.path, clock, self.ending.ask, compilations)
        self.parts.tell("begin_run", "", run)
        self.inside: Inside | None = next(iter(self.parts.tell("inside", "")), None)
        """How steps see inside compiled parts, if a part has them do so."""

    def __iter__(self) -> Iterator[ObservedStep]:
        return iter(list(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def of(self, optimizer: Optimizer) -> list[ObservedStep]:
        if not self._open:
            return []
        return [step for step in self._open if any(optimizer is other for other in step.model.optimizers())]

    def training(self, model: ObservedModel) -> ObservedStep | None:
        return next((step for step in self._open if step.model is model and step.phase == "train"), None)

    def wants(self, position: Position) -> bool:
        """True if to observe this step: to record it, or for a part."""
        if position.kept or not self._parts_want:
            return position.kept
        return any(self.parts.tell("wants", "", position.number)) and self.plan.covers(position.number)

    def open(self, model: ObservedModel, position: Position) -> ObservedStep | None:
        """Open a step; None if the model has been freed. The oldest steps make room for it."""
        module = model.module
        if module is None:
            return None
        self._sink.begin_step()
        step = ObservedStep(model, module, self._shared, position, self.inside)
        waiting = [other for other in self._open if other.state is State.WAITING]
        for other in waiting[: max(0, len(self._open) + 1 - _MOST_OPEN)]:
            self.leave(other)
        self._open.append(step)
        return step

    def close_finished(self, step: ObservedStep) -> None:
        if step.seconds is None:
            step.seconds = step.model.training.take()
        self.close(step)

    def leave(self, step: ObservedStep) -> None:
        """Close a step as it is. If its model was ever trained, the step is unfinished: its optimizer may be gone."""
        if step.model.hidden and not step.stepped:
            step.kept = False  # awaited, and nothing came
        if step.model.trained:
            step.leave_unfinished()
        self.close(step)

    def close_abandoned(self) -> None:
        """Close the steps that wait for gradients which can't come any more."""
        for step in self:
            if step.state is State.WAITING and step.abandoned:
                self.close(step)

    def close(self, step: ObservedStep) -> None:
        """Search a step, take its hooks off, and hand it on if it is recorded. Another thread may have closed it."""
        if step not in self._open:
            return
        self._open.remove(step)
        if step.phase == "train" and step.model.differentiated is None:
            step.model.differentiated = False
        self.look(step, over=True)
        step.remove_hooks()
        if step.kept and not self.plan.ended.is_set():
            self._record(step)
        step.measured.release()

    def _record(self, step: ObservedStep) -> None:
        recorded = step.recorded()
        stopwatch = step.model.training if step.phase == "train" else step.model.inference
        if recorded.loss is not None and recorded.complete:
            self.losses.correct(step.model.name, step.number, recorded.loss)
        self.losses.flush()
        name = step.model.name
        if name not in self._described:
            self._described.add(name)
            if settings := self.parts.run(name, "settings", lambda: recorded_settings(step.module, name), None):
                self._hand_on(self._sink.settings, ModelSettings(name, [settings]))
        for line in step.measured.part_lines(recorded):
            self._write(line)
        self._hand_on(self._sink.step, replace(recorded, plain_seconds=stopwatch.mean()))
        self.parts.tell("step_recorded", name, recorded)
        if not self.plan.ended.is_set():
            step.model.counts.count_recorded(step.phase)

    def _part_failed(self, model: str, line: str, error: Exception) -> None:
        """Note a part of the observation that is left out from now on."""
        self.failed.append((model, line))
        self._sink.part_failed(f"{model}: {line}" if model else line, error)

    def discard(self) -> None:
        while self._open:
            step = self._open.pop()
            step.remove_hooks()
            step.measured.release()

    def look(self, step: ObservedStep, *, over: bool = False) -> None:
        """Let parts look at what the step has measured since the last time; one may find the first bad value."""
        if self.plan.ended.is_set():
            return
        for value in step.measured.looked_at(OpenStepView(step), over=over):
            step.kept = True
            self._hand_on(self._sink.non_finite, value)

    def _loss_found(self, value: NonFinite) -> None:
        """Hand on the first loss that is not finite, unless a search finds where it begins."""
        self.schedule.look_after(value.step)
        if not self.plan.searches:
            self._hand_on(self._sink.non_finite, value)

    def _write(self, line: PartLine) -> None:
        """Hand on the line of a part."""
        if line.said:
            self.schedule.look_after(line.step)
        if line.ends_program:
            self.ending.ask()
        self._hand_on(self._sink.of_part, line)

    def _hand_on(self, receive: Callable[[T], None], value: T) -> None:
        """Hand a value to the sink, unless it can take no more."""
        if not self.plan.ended.is_set():
            try:
                receive(value)
            except OSError as error:
                self.plan.ended.set()
                self._sink.gave_up(error)

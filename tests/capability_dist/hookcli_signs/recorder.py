"""Counts the outputs of the model that are positive, in each recorded step of a running program."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.observe.parts import BegunStep, RecorderPart, StepPart
from hookcli.table import Report, Row, columns_named
from hookcli.table.meta import Meta
from hookcli_signs.lines import SignsOfStep


class Recorder(RecorderPart):
    def __init__(self, signs_above: str | None) -> None:
        self.limit = float(signs_above or 0)
        self.steps = self.recorded = 0

    def begin_step(self, step: BegunStep) -> StepOfSigns | None:
        return StepOfSigns(step.model, self.limit) if step.gradients else None

    def optimizer_stepped(self, models, optimizer) -> None:
        self.steps += len(models)

    def step_recorded(self, step: RecordedStep) -> None:
        self.recorded += step.phase == "train"

    def notes(self) -> list[str]:
        return [f"signs were counted in {self.recorded} of {self.steps} steps"]


class StepOfSigns(StepPart):
    def __init__(self, model: str, limit: float) -> None:
        self.model, self.limit, self.positive, self.passes = model, limit, 0, 0

    def attach(self, session: HookSession) -> None:
        session.forward(self._see)

    def _see(self, event: HookEvent) -> None:
        if not event.fqn:
            self.positive += int((event.output > self.limit).sum())

    def backward_over(self) -> None:
        self.passes += 1

    def report(self, meta: Meta, group: Sequence[int]) -> Report:
        row = Row({"fqn": "", "positive_outputs": self.positive})
        return Report("signs-of-step", self.model, columns_named("fqn", "positive_outputs"), [row], meta)

    def lines(self, step: RecordedStep, *, scaled: bool) -> list[SignsOfStep]:
        return [SignsOfStep(step.model, step.step, self.positive)] * self.passes

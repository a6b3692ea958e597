"""The part of formats in a recorded run: what rounding costs the weights, inputs and gradients of recorded steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from hookcli.capabilities.formats.layout import OF
from hookcli.capabilities.formats.lines import Rounding
from hookcli.capabilities.formats.probe import FormatsProbe
from hookcli.capabilities.formats.verdict import loses, verdict
from hookcli.hooks.session import HookSession
from hookcli.record.file.record_lines import PartLine, RecordedStep
from hookcli.record.observe.measurements.step_reports import merge_calls
from hookcli.record.observe.parts import BegunStep, RecorderPart, StepPart
from hookcli.table import Report, Skipped
from hookcli.table.meta import Meta


class Recorder(RecorderPart):
    """Measures in each recorded step, in these formats."""

    def __init__(self, formats: Sequence[str]) -> None:
        self._formats = formats
        self.scale: Tensor | None = None
        """The scale of the GradScaler that has scaled the last loss, if any has."""

    def backward_begins(self, scale: Callable[[], Tensor | None]) -> None:
        last = scale()
        self.scale = None if last is None else last.clone()  # a scaler updates it in place

    def begin_step(self, step: BegunStep) -> StepPart:
        return StepOfFormats(step, self._formats, self)


class StepOfFormats(StepPart):
    """The weights as the step begins, and what layers receive and get as gradients in it.

    Gradients are those that arrive: a GradScaler has scaled them, and a note has its scale.
    """

    def __init__(self, begun: BegunStep, formats: Sequence[str], recorder: Recorder) -> None:
        self._recorder = recorder
        self._scales: list[Tensor] = []
        self._begun, self._formats = begun, formats
        self._probe = FormatsProbe(of=OF, formats=formats)
        self._attached = False
        self._said: tuple[str, bool] | None = None

    def attach(self, session: HookSession) -> None:
        self._probe.attach(session)
        self._attached = True

    def backward_over(self) -> None:
        if self._recorder.scale is not None:
            self._scales.append(self._recorder.scale)

    def report(self, meta: Meta, group: Sequence[int]) -> Report | None:
        if not self._attached:  # TorchScript, and what was compiled in place
            return None
        report = merge_calls(self._probe.report(self._begun.model, meta), self._begun.name)
        hidden = {self._begun.name(fqn): why for fqn, why in self._begun.compiled.items() if fqn in self._probe.places}
        scales = ", ".join(dict.fromkeys(f"{float(scale):g}" for scale in self._scales))
        if scales:
            self.notes = [f"gradients were rounded as they arrived, scaled by the GradScaler's {scales}"]
        report = replace(report, skipped=[*report.skipped, *(Skipped(fqn, why) for fqn, why in hidden.items())])
        self._said = verdict(report.rows, self._formats), loses(report.rows, self._formats)
        return report

    def lines(self, step: RecordedStep, *, scaled: bool) -> Sequence[PartLine]:
        """The verdict on a training step."""
        if self._said is None or step.phase != "train":
            return ()
        return [Rounding(step.model, step.step, *self._said)]

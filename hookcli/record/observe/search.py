"""Finds the first non-finite value: where it arose, and the rows that came before it."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

from hookcli.probes.base import StatsProbe
from hookcli.record.file.record import NonFinite
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.record.observe.step import ObservedStep
from hookcli.report import Report, Row
from hookcli.tensors.stats import resolve

_BEFORE = 5  # rows shown before the non-finite one


class StopProgram(SystemExit):
    """Ends the program at its first non-finite value, as `--first-bad stop` asks; passes through its `finally`."""


class Search:
    """Searches the measurements of observed steps, in the order in which they were made."""

    def __init__(self, plan: RecordingPlan) -> None:
        self.on = plan.first_bad is not None
        self._found = False
        self._stop = plan.first_bad == "stop"

    def look(self, step: ObservedStep) -> NonFinite | None:
        """The first non-finite value that the step measured since the last call. Waits for an accelerator."""
        if not self.on:
            return None
        found = self._in_losses(step) or self._in_rows(step)
        if found is not None:
            self.on, self._found = False, True
        return found

    def stop_if_asked(self) -> None:
        """Raise StopProgram, once, if a value was found and the program is to end there.

        In the main thread only: in another one it would end that thread, and the program would continue.
        """
        if self._found and self._stop and threading.current_thread() is threading.main_thread():
            self._stop = False
            raise StopProgram(1)

    def _in_rows(self, step: ObservedStep) -> NonFinite | None:
        """Modules are measured as they return, so the innermost of those that hold the same value comes first."""
        for what, probe, seen, new in step.measured.unsearched():
            stats = resolve([pending for _, pending in seen[-new - _BEFORE :]])
            rows = [Row(values, s) for (values, _), s in zip(seen[-new - _BEFORE :], stats, strict=True)]
            for number, row in enumerate(rows[-new:], len(rows) - new):
                if row["nan"] or row["inf"]:
                    before = rows[max(0, number - _BEFORE) : number + 1]
                    columns = StatsProbe.columns if what == "output" else probe.columns
                    report = Report(probe.name, step.model.name, columns, before, grouping="list")
                    found = _found(step, step.measured.name(row.fqn), what, row["nan"], row["inf"], [report])
                    return replace(found, cause=_cause(step, row.fqn)) if what == "output" else found
        return None

    def _in_losses(self, step: ObservedStep) -> NonFinite | None:
        for value in step.losses.new():
            if not math.isfinite(value):
                return _found(step, "", "loss", int(math.isnan(value)), int(math.isinf(value)), [])
        return None


def _found(step: ObservedStep, fqn: str, what: str, nan: int, inf: int, reports: list[Report]) -> NonFinite:
    return NonFinite(step.model.name, step.phase, step.number, fqn, what, nan, inf, reports)


def _cause(step: ObservedStep, fqn: str) -> str:
    """Name what was non-finite before a module returned such values: its own parameters, or the model's input."""
    for name, parameter in step.module.get_submodule(fqn).named_parameters(recurse=False):
        if not parameter.isfinite().all():
            return f"its {name} is not finite"
    return "the model's input is not finite" if step.measured.input_is_non_finite() else ""

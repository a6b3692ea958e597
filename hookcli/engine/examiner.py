"""Measures a model for the checks: under all probes at once in the mode that it is in, then in eval mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from hookcli.checks.measurements import Measurements
from hookcli.checks.plan import CheckPlan
from hookcli.engine.capture import Hooking, capture, capture_run
from hookcli.engine.eval_runs import evaluate, in_eval
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.probing import Edits
from hookcli.errors import ModelError, NoGradientsError
from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.base import Probe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.probes.parameters import ParametersProbe
from hookcli.probes.settings import SettingsProbe
from hookcli.table import Report

LAYOUT = ("shapes", "flow")
"""The probes that need no values, in a run of their own: on the meta device if the model can run there."""
Layout = Callable[[], Sequence[Report]]
_RUNS = ("inventory", "settings", "activations", "grads", "again")
_IN_EVAL = ("evaluation", "companions", "halves")
_FULL = {"activations", "grads"}


def _parameter_grads(hist: bool) -> Probe:
    """The gradients of parameters alone: checks of gradients judge no operators."""
    probe = GradsProbe(hist=hist)
    probe.operators = False
    return probe


class Examiner:
    """Measures a model: under all probes at once in the mode that it is in, then in eval mode."""

    def __init__(self, run: PreparedRun, plan: CheckPlan, in_full: bool = False, edits: Edits = ()) -> None:
        self.run = run
        self._hooking = Hooking(edits=edits, ops=plan.ops)
        self.plan = plan
        self.in_full = in_full
        self.needs = plan.needs | (_FULL if in_full else set())
        self.further: list[Report] = []
        self.model = model = run.model
        self.error: ModelError | None = None
        self.missing: dict[str, str] = {}
        self.baseline = plan.against.of(run.name) if plan.against else None
        self.values = not any(x.is_meta for x in (*model.parameters(), *model.buffers()))
        trained = any(p.requires_grad for p in model.parameters())
        self.backward = plan.backward and trained and bool({"grads", "again"} & self.needs)
        if not self.backward:
            self.missing["grads"] = "nothing requires a gradient" if plan.backward else "skipped by --no-backward"

    def measured(self, shapes: Callable[[], Report], layout: Layout) -> Measurements:
        """Run the model and return what the plan's checks need; in full, `layout` measures the same run's shapes."""
        found = self._judged(shapes)
        return self._laid_out(found, layout) if self.in_full else found

    def _laid_out(self, found: Measurements, layout: Layout) -> Measurements:
        """Measure what needs no values, also of a model that fails: the shapes of the parts that run."""
        try:
            self.further += layout()
        except ModelError as error:
            self.further += [report for report in error.reports if report.rows]
            if not self.error:
                self.error = error
                return replace(found, crash=error)
        return found

    def _judged(self, shapes: Callable[[], Report]) -> Measurements:
        needs, plan = self.needs, self.plan
        measured = Measurements(
            expected=plan.expected or None,
            baseline=self.baseline,
            tolerance=plan.tolerance,
            missing=self.missing,
            dtype=self.run.info.dtype,
        )
        if needs & set(_RUNS) or any(not check.needs for check in self.plan.checks):
            measured = replace(measured, **self._measured())
        if self.error:
            unseen = [name for name in _RUNS if not getattr(getattr(measured, name), "rows", ())]
            absent: dict[str, Any] = dict.fromkeys(unseen)
            return replace(measured, **absent, crash=self.error)
        return replace(measured, **self._in_eval(shapes), eval_crash=self.error)

    def _measured(self) -> dict[str, Any]:
        needs, full = self.needs, self.in_full
        bits = "again" in needs
        self._stage(f", run 1 of {self.plan.repeat}" if bits else "")
        memory = any(check.name == "max-activation-memory" for check in self.plan.checks)
        probes: list[Probe] = [InventoryProbe(backward=self.backward, memory=memory, bits=bits)]
        probes += [ActivationsProbe(hist=full)] if "activations" in needs and self.values else []
        probes += [_parameter_grads(full)] if self.backward else []
        probes += [SettingsProbe()] if "settings" in needs else []
        captured = self._captured([*probes, *self._further()])
        reports = {report.probe: report for report in captured[: len(probes)]}
        self.further += captured[len(probes) :]
        if bits and not self.error:
            again = [self._repeated(number) for number in range(2, self.plan.repeat + 1)]
            return reports | {"again": tuple(report for group in again for report in group)}
        return reports

    def _further(self) -> list[Probe]:
        """Probes of what a page shows and no check reads."""
        if not (self.in_full and self.values):
            return []
        return [*([GradsProbe("outputs", hist=True)] if self.backward else []), ParametersProbe()]

    def _repeated(self, number: int) -> Sequence[Report]:
        """The inventory of a further run, on the first batch."""
        self._stage(f", run {number} of {self.plan.repeat}")
        return self._captured([InventoryProbe(backward=self.backward, bits=True)], replace(self.run, data=None))

    def _stage(self, what: str = "") -> None:
        self.run.feedback.stage(f"checking {self.run.name} on {self.run.info.device}{what}")

    def _captured(self, probes: Sequence[Probe], run: PreparedRun | None = None) -> Sequence[Report]:
        run = run or self.run
        try:
            return capture_run(replace(run, step=replace(run.step, otherwise="randn")), probes, self._hooking)
        except NoGradientsError as error:  # a finding of the checks, not a failure
            return tuple(error.reports)
        except ModelError as error:
            self.error = error
            return tuple(error.reports)

    def _in_eval(self, shapes: Callable[[], Report]) -> dict[str, Any]:
        """The measurements in eval mode. A model that fails only there is still judged by the others."""
        found: dict[str, Any] = {}
        self._stage(" in eval mode")
        try:
            found = self._compared(self.needs) if self.values else {}
            found["shapes"] = shapes() if "shapes" in self.needs else None
        except ModelError as error:
            self.error = error
            self.missing |= dict.fromkeys((*_IN_EVAL, "shapes"), "the model fails in eval mode")
        return found

    def _compared(self, needs: set[str]) -> dict[str, Any]:
        wanted = [name for name in _IN_EVAL if name in needs]
        found = evaluate(self.model, arguments(self.run.inputs), wanted) if wanted else {}
        self.missing |= {name: reason for name, reason in found.items() if isinstance(reason, str)}
        return {name: fact for name, fact in found.items() if not isinstance(fact, str)}

    def shapes(self) -> Report:
        """Return the report of `shapes` in eval mode."""
        with in_eval(self.model), torch.no_grad():
            return capture(self.model, self.run.inputs, ["shapes"], name=self.run.name)[0]

    def layout(self) -> Sequence[Report]:
        """Return the reports of LAYOUT in the mode that the model is in."""
        return capture(self.model, self.run.inputs, LAYOUT, name=self.run.name, ops=self.plan.ops)

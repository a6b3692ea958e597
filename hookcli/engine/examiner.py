"""Measures a model for the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hookcli.checks.lost import guard_of
from hookcli.checks.measurements import FIELDS, EvalOutputs, Measurements
from hookcli.checks.selection import CheckPlan
from hookcli.engine.capture import Hooking, capture, capture_run
from hookcli.engine.compiling import compile_run
from hookcli.engine.eval_mode import in_eval, warnings_left_out
from hookcli.engine.eval_runs import evaluate
from hookcli.engine.inputs import arguments
from hookcli.engine.looked import require_casts
from hookcli.engine.lost_gradients import with_reasons
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.probing import Edits
from hookcli.engine.setting import Setting, compile_settings
from hookcli.engine.spared import layout_probes, spared, why_left_out
from hookcli.engine.step import Step
from hookcli.errors import ModelError, NoGradientsError, NoLossError
from hookcli.hooks.parts import has_compiled
from hookcli.hooks.torch_private.programs import backends_of, compiled_in_place
from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.base import Probe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.probes.parameters import ParametersProbe, SettingsProbe
from hookcli.registry.capability import capabilities, load_text
from hookcli.registry.pieces import left_out
from hookcli.sources.base import Recipe
from hookcli.table import Report

Layout = Callable[[], Sequence[Report]]
_RUNS = ("inventory", "settings", "activations", "grads", "again")
_IN_EVAL = ("evaluation", "eval_outputs", "hidden", "companions", "halves")
_FULL = {"activations", "grads"}
_MEASURES = {one.name: one.measures for one in capabilities() if one.measures}


@dataclass(frozen=True)
class Subject:
    """The model that is checked, for a capability that measures it by itself (`Capability.measures`).

    The run was made from `recipe` and `setting`, which a check from Python does not have. `settings`: the settings of
    the check, as options of the command line.
    """

    run: PreparedRun
    step: Step
    backward: bool = True
    recipe: Recipe | None = None
    setting: Setting | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class Examiner:
    """Measures a model: under all probes at once in the mode that it is in, then in eval mode."""

    def __init__(self, run: PreparedRun, plan: CheckPlan, in_full: bool = False, edits: Edits = ()) -> None:
        self.run = run
        self._hooking = Hooking(edits=edits, ops=plan.ops)
        self.plan = plan
        self.in_full = in_full
        self.needs = plan.needs | (_FULL if in_full else set())
        self._named = self.needs - FIELDS - _MEASURES.keys()
        self.further: list[Report] = []
        self._unread: Sequence[Probe] = ()
        self._of_probes: dict[str, Report] = {}
        self._waiting: Sequence[Probe] = ()
        self.model = model = run.model
        self.error: ModelError | None = None
        self.missing: dict[str, str] = {}
        if plan.compile:
            compile_settings(plan.compile)  # before anything runs
        if plan.emulate_casts:
            backends = backends_of(model) or [*filter(None, [plan.compile])]
            require_casts([] if plan.ops or edits else backends, bool(backends) or has_compiled(model))
        self.baseline = plan.against.of(run.name) if plan.against else None
        self.values = not any(x.is_meta for x in (*model.parameters(), *model.buffers()))
        self.trained = any(p.requires_grad for p in model.parameters())
        self.backward = plan.backward and self.trained and bool({"grads", "again"} & self.needs)
        if not self.backward:
            self.missing["grads"] = "nothing requires a gradient" if plan.backward else "skipped by --no-backward"

    def measured(self, shapes: Callable[[], Report], layout: Layout) -> Measurements:
        """Run the model and return what the plan's checks need; in full, `layout` measures the same run's shapes."""
        plan = self.plan
        measured = Measurements(
            expected=plan.expected or None,
            baseline=self.baseline,
            tolerance=plan.tolerance,
            missing=self.missing,
            dtype=self.run.info["dtype"],
        )
        if self.needs & set(_RUNS) or self._named or any(not check.needs for check in plan.checks):
            differentiated, reports = self.backward, self._in_own_mode()
            if differentiated and not self.backward:
                self.further, self._of_probes = [], {}
                reports = self._in_own_mode()
            measured = replace(measured, **reports)
        if self.error:
            absent: dict[str, Any] = {n: None for n in _RUNS if not getattr(getattr(measured, n), "rows", ())}
            absent["probes"] = {name: report for name, report in measured.probes.items() if report.rows}
            measured = replace(measured, **absent, crash=self.error)
        else:
            measured = replace(measured, **self._in_eval(shapes), eval_crash=self.error)
            measured = self._inside(self._with_compilation(measured))
            measured = with_reasons(measured, self.run, self.needs, self._hooking)
        return self._laid_out(measured, layout) if self.in_full else measured

    def _laid_out(self, measured: Measurements, layout: Layout) -> Measurements:
        """Add the reports of the layout to `further`; where the model fails in its run alone, that is its crash."""
        try:
            with warnings_left_out():
                self.further += layout()
        except ModelError as error:  # the shapes of the parts that run
            self.further += [report for report in error.reports if report.rows]
            if not self.error:
                self.error = error
                return replace(measured, crash=error)
        return measured

    def with_capabilities(self, measured: Measurements, subject: Subject) -> Measurements:
        """The measurements with the reports of capabilities that checks need, unless the model failed."""
        wanted = () if self.error else sorted(self.needs & _MEASURES.keys())
        reports: dict[str, Report] = {}
        for one in capabilities():
            if one.name in wanted:
                with left_out(one, f"measures={one.measures!r}"):
                    reports[one.name] = load_text(one.measures)(subject)
        return replace(measured, probes={**measured.probes, **reports}) if reports else measured

    def _in_own_mode(self) -> dict[str, Any]:
        repeat, bits = self.plan.repeat, "again" in self.needs
        self._stage(f", run 1 of {repeat}" if bits else "")
        self._unread = self._for_people()
        probes = [*self._for_checks(), *self._unread]
        if self.plan.compile or has_compiled(self.model):  # after the compilations that are judged by themselves
            self._waiting = [probe for probe in probes if probe.inside_compiled]
        reports = self._taken([probe for probe in probes if probe not in self._waiting])
        if not bits or self.error:
            return reports
        again: list[Report] = []
        for number in range(2, repeat + 1):
            self._stage(f", run {number} of {repeat}")
            probe = InventoryProbe(backward=self.backward, bits=True)
            again += self._captured([probe], replace(self.run, data=None))  # on the first batch
        return {**reports, "again": tuple(again)}

    def _for_checks(self) -> list[Probe]:
        """The probes whose reports checks read."""
        needs, full = self.needs, self.in_full
        memory = any(check.name == "max-activation-memory" for check in self.plan.checks)
        probes: list[Probe] = [InventoryProbe(backward=self.backward, memory=memory, bits="again" in needs)]
        if "activations" in needs and self.values:
            probes.append(ActivationsProbe(hist=full))
        if self.backward:
            probes.append(grads := GradsProbe(hist=full))
            grads.operators = False  # checks of gradients judge parameters alone
        if full or "settings" in needs:
            probes.append(SettingsProbe(for_people=full))
        for probe in map(spared, sorted(self._named)):  # without a field of Measurements
            if probe.needs_backward and not self.backward:
                self.missing[probe.name] = self.missing["grads"]
            elif self.values or not probe.values:
                probes.append(probe)
        return probes

    def _for_people(self) -> list[Probe]:
        """The probes of a page that no check reads."""
        if not self.in_full or not self.values:
            return []
        return [GradsProbe("outputs", hist=True), ParametersProbe()] if self.backward else [ParametersProbe()]

    def _taken(self, probes: Sequence[Probe]) -> dict[str, Any]:
        """Run the model under these probes. Returns the reports that checks read; others go to `further`."""
        captured = dict(zip(probes, self._captured(probes), strict=False))
        self.further += [report for probe, report in captured.items() if probe in self._unread]
        read = {report.probe: report for probe, report in captured.items() if probe not in self._unread}
        self.missing |= {probe.name: why for probe in probes if (why := why_left_out(probe))}
        lost = [probe.name for probe in probes if why_left_out(probe)]
        self._of_probes |= {name: report for name, report in read.items() if name not in (*FIELDS, *lost)}
        return {"probes": self._of_probes, **{name: read[name] for name in read.keys() & FIELDS}}

    def _inside(self, measured: Measurements) -> Measurements:
        """The measurements, with the probes' that wait to see inside compiled programs."""
        if not self._waiting or measured.crash:
            return measured
        before, self.error = self.error, None
        ours = self.plan.compile and not (measured.compile_crash or has_compiled(self.model))
        self._stage(" inside its compiled programs" if ours or has_compiled(self.model) else "")
        self._hooking = replace(self._hooking, emulate_casts=self.plan.emulate_casts and not measured.compile_crash)
        with compiled_in_place(self.model, compile_settings(self.plan.compile or "") if ours else {}):
            measured = replace(measured, **self._taken(self._waiting), crash=self.error)
        self.error = self.error or before
        return measured

    def _stage(self, what: str = "") -> None:
        self.run.feedback.stage(f"checking {self.run.name} on {self.run.info['device']}{what}")

    def _captured(self, probes: Sequence[Probe], run: PreparedRun | None = None) -> Sequence[Report]:
        run = run or self.run
        try:
            return capture_run(replace(run, step=replace(run.step, otherwise="randn")), probes, self._hooking)
        except NoLossError as error:  # `_in_own_mode` is run again without a backward
            self.backward, self.missing["grads"] = False, str(error)
            return tuple(error.reports)
        except NoGradientsError as error:  # a finding of the checks, not a failure
            return tuple(error.reports)
        except ModelError as error:
            self.error = error
            return tuple(error.reports)

    def _in_eval(self, shapes: Callable[[], Report]) -> dict[str, Any]:
        """The measurements in eval mode. A model that fails only there is still judged by the others."""
        measured: dict[str, object] = {}
        self._stage(" in eval mode")
        wanted = self.wanted_in_eval()
        try:
            data = self.run.data if self.run.data and self.run.data.several else None
            batches = (arguments(batch.inputs) for batch in data.each()) if data else [arguments(self.run.inputs)]
            total = str(data.total or "") if data else None
            results = evaluate(self.model, batches, wanted, self._fails, self.plan.ops, total) if wanted else {}
            for name, result in results.items():
                if isinstance(result, str):
                    self.missing[name] = result
                else:
                    measured[name] = result
            with warnings_left_out():
                measured["shapes"] = shapes() if "shapes" in self.needs else None
        except ModelError as error:
            self.error = error
            self.missing |= dict.fromkeys((*_IN_EVAL, "shapes"), "the model fails in eval mode")
        return measured

    def wanted_in_eval(self) -> list[str]:
        """What is to be measured in eval mode; gradients there only of a model that trains in another."""
        differentiated = self.backward and self.model.training
        return [n for n in _IN_EVAL if n in self.needs and self.values and (differentiated or n != "hidden")]

    def _fails(self, name: str, result: object) -> bool:
        """True if a check finds a fault in what was measured on one batch in eval mode."""
        if isinstance(result, EvalOutputs):
            return bool(result.activations)
        field: dict[str, Any] = {name: result}
        measured = replace(Measurements(dtype=self.run.info["dtype"]), **field)
        judges = [check for check in self.plan.checks if check.needs == (name,) and not isinstance(result, str)]
        for check in judges:
            with guard_of(check):
                if any(check.judge(measured)):
                    return True
        return False

    def _with_compilation(self, measured: Measurements) -> Measurements:
        """Add the measurements of a compiled run, if checks read them; its failure is `compile_crash`."""
        if "compilation" not in self.needs or not self.plan.compile:
            return measured
        self._stage(f" under torch.compile ({self.plan.compile})")
        try:
            made = compile_run(self.run, self.plan.compile, self.plan.backward and self.trained)
        except ModelError as error:
            self.error = self.error or error
            self.missing["compilation"] = "the model fails under torch.compile"
            return replace(measured, compile_crash=error)
        self.missing["compilation"] = "this PyTorch tells nothing of compilations"
        return replace(measured, compilation=made)

    def shapes(self) -> Report:
        with in_eval(self.model), torch.no_grad():
            return capture(self.model, self.run.inputs, probes="shapes", name=self.run.name)

    def layout(self) -> Sequence[Report]:
        return capture(self.model, self.run.inputs, probes=layout_probes(), name=self.run.name, ops=self.plan.ops)

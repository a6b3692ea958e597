"""Runs a model under the probes that the checks need, as often as they need, and lets the checks judge."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any, Unpack

import torch
from torch import nn

from hookcli.checks.crash import with_crash
from hookcli.checks.judgement import judge
from hookcli.checks.measurements import Measurements
from hookcli.checks.plan import CheckPlan, CheckSettings, make_plan
from hookcli.diff.baseline import Baseline, add_baselines
from hookcli.engine.capture import arguments, capture, capture_run
from hookcli.engine.eval_runs import evaluate, in_eval
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.step import Loss, Step
from hookcli.errors import ModelError, NoGradientsError, UsageError, unknown
from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.origin import shown_path
from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.base import Probe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.probes.settings import SettingsProbe
from hookcli.report import Finding, Report
from hookcli.report.names import around
from hookcli.tensors.random_state import others_run_on

_RUNS = ("inventory", "settings", "activations", "grads", "again")
_IN_EVAL = ("evaluation", "companions", "halves")


@dataclass(frozen=True)
class Examination:
    """The report of the checks and the reports that they read."""

    report: Report
    measured: Sequence[Report] = ()
    error: ModelError | None = None

    @property
    def kept(self) -> tuple[list[Report], Mapping[str, Any]]:
        """The reports for a baseline and the `meta` of their run."""
        by_name = {report.probe: report for report in self.measured}
        reports = [by_name[probe] for probe in ("settings", "shapes", "activations", "grads") if probe in by_name]
        return reports, by_name["activations"].meta if "activations" in by_name else {}


def check(
    model: nn.Module,
    inputs: Any,
    *,
    loss: str | Loss | None = None,
    save: str | None = None,
    name: str | None = None,
    **settings: Unpack[CheckSettings],
) -> Report:
    """Run the model once on `inputs`, in its present mode, and judge the run as `hookcli check` does.

    `inputs` and `loss` are those of `capture`; without a loss, neither given nor returned by the model, gradients start
    from a random projection of the outputs.
    `save` is a file that gets a baseline, unless the model crashes. The settings, all optional: `select` and `ignore`
    take ids, names or beginnings of ids; `thresholds` maps ids or names to figures, budgets ("max-params") among them;
    `expect_output` says what the model returns; `backward=False` runs no backward pass; `repeat` runs the model so
    often and compares the results; `split_batch` compares with halves of the batch; `against` is a file with a baseline
    of this `name`, compared within `rtol` and `atol`: give both runs the same values, under the same seed.

    Returns a report with `findings`; a model that crashes is such a finding. Parameters, gradients, buffers, modes and
    random state are afterwards as they were. Raises UsageError for unknown names.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"check needs an nn.Module, not {type(model).__name__}")
    for given in settings.keys() - CheckSettings.__annotations__.keys():
        raise TypeError(f"check: {unknown('setting', given, CheckSettings.__annotations__)}")
    plan = make_plan(**settings, keep=save is not None)
    examination = examine(PreparedRun.of(model, inputs, Step(loss=loss), name), plan)
    if save is not None and not examination.error:
        add_baselines(save, [Baseline.of(*examination.kept)])
    return examination.report


def examine(run: PreparedRun, plan: CheckPlan, shapes: Callable[[], Report] | None = None) -> Examination:
    """Judge a prepared run by a plan. `shapes` makes the report of MACs, else the run's model does."""
    started, own = time.perf_counter(), ProgramClock.total
    examiner = _Examiner(run, plan)
    with others_run_on():
        found = examiner.measured(shapes or examiner.shapes)
    if found.baseline and found.activations and not examiner.error:
        found.baseline.require_same_run(found.activations.meta)
    checks = with_crash(plan.checks) if examiner.error else plan.checks
    judgement = judge(checks, found, values=examiner.values)
    judgement = replace(judgement, findings=[_located(finding, run.model) for finding in judgement.findings])
    described = found.inventory.meta if found.inventory else run.info.to_meta()
    modules = sum(1 for _ in run.model.modules())
    spent = {"seconds": time.perf_counter() - started, "hookcli_seconds": ProgramClock.total - own}
    described = {**described, **spent, "modules": modules}
    report = judgement.report(run.name, described)
    measured = [r for r in (found.inventory, found.activations, found.grads, found.settings, found.shapes) if r]
    return Examination(report, measured, examiner.error)


class _Examiner:
    """Measures a model: under all probes at once in the mode that it is in, then in eval mode."""

    def __init__(self, run: PreparedRun, plan: CheckPlan) -> None:
        self.run = run
        self.plan = plan
        self.model = model = run.model
        self.error: ModelError | None = None
        self.missing: dict[str, str] = {}
        self.baseline = plan.against.of(run.name) if plan.against else None
        self.values = not any(x.is_meta for x in (*model.parameters(), *model.buffers()))
        trained = any(p.requires_grad for p in model.parameters())
        self.backward = plan.backward and trained and bool({"grads", "again"} & plan.needs)
        if not self.backward:
            self.missing["grads"] = "nothing requires a gradient" if plan.backward else "skipped by --no-backward"

    def measured(self, shapes: Callable[[], Report]) -> Measurements:
        """Run the model and return what the plan's checks need; `shapes` counts its operations."""
        needs = self.plan.needs
        plan = self.plan
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
        return replace(measured, **self._in_eval(needs, shapes), eval_crash=self.error)

    def _measured(self) -> dict[str, Any]:
        needs = self.plan.needs
        bits = "again" in needs
        self._stage(f", run 1 of {self.plan.repeat}" if bits else "")
        memory = any(check.name == "max-activation-memory" for check in self.plan.checks)
        probes: list[Probe] = [InventoryProbe(backward=self.backward, memory=memory, bits=bits)]
        probes += [ActivationsProbe()] if "activations" in needs and self.values else []
        probes += [GradsProbe()] if self.backward else []
        probes += [SettingsProbe()] if "settings" in needs else []
        reports = {report.probe: report for report in self._captured(probes)}
        if bits and not self.error:
            again = [self._repeated(number) for number in range(2, self.plan.repeat + 1)]
            return reports | {"again": tuple(report for group in again for report in group)}
        return reports

    def _repeated(self, number: int) -> Sequence[Report]:
        """The inventory of a further run."""
        self._stage(f", run {number} of {self.plan.repeat}")
        return self._captured([InventoryProbe(backward=self.backward, bits=True)])

    def _stage(self, what: str = "") -> None:
        self.run.feedback.stage(f"checking {self.run.name} on {self.run.info.device}{what}")

    def _captured(self, probes: Sequence[Probe]) -> Sequence[Report]:
        try:
            return capture_run(replace(self.run, step=replace(self.run.step, otherwise="randn")), probes)
        except NoGradientsError as error:  # a finding of the checks, not a failure
            return tuple(error.reports)
        except ModelError as error:
            self.error = error
            return tuple(error.reports)

    def _in_eval(self, needs: set[str], shapes: Callable[[], Report]) -> dict[str, Any]:
        """The measurements in eval mode. A model that fails only there is still judged by the others."""
        found: dict[str, Any] = {}
        self._stage(" in eval mode")
        try:
            found = self._compared(needs) if self.values else {}
            found["shapes"] = shapes() if "shapes" in needs else None
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


def _located(finding: Finding, model: nn.Module) -> Finding:
    """The finding with file and line of the innermost module around it that is defined in the working directory."""
    modules = dict(model.named_modules())
    for fqn in (finding.fqn, *around(finding.fqn)):
        if fqn in modules and (place := _source(type(modules[fqn]))):
            return replace(finding, file=place[0], line=place[1])
    return finding


def _source(kind: type) -> tuple[str, int] | None:
    """The file of a class and the line of its first method, if it lies in the working directory."""
    functions = [inspect.unwrap(value) for value in vars(kind).values() if isinstance(value, FunctionType)]
    codes = [function.__code__ for function in functions if isinstance(function, FunctionType)]
    places = [(shown_path(code.co_filename), code.co_firstlineno) for code in codes]
    here = [(file, line) for file, line in places if not Path(file).is_absolute() and Path(file).is_file()]
    return min(here, key=lambda place: place[1], default=None)

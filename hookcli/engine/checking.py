"""Examines a model: it is measured as the checks need, and the checks judge; or with everything that a page shows."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn

from hookcli.checks.base import IN_EVAL
from hookcli.checks.crash import with_crash
from hookcli.checks.judgement import judge
from hookcli.checks.measurements import Measurements
from hookcli.checks.selection import SETTINGS, CheckPlan, make_plan
from hookcli.diff.baseline import Baseline, add_baselines
from hookcli.engine.examiner import Examiner, Layout, Subject
from hookcli.engine.gradients import GRADIENTS
from hookcli.engine.inputs import as_called
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.probing import Edits
from hookcli.engine.run_info import finished
from hookcli.engine.spared import LAYOUT
from hookcli.engine.step import Step
from hookcli.errors import ModelError, UsageError
from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.origin import shown_path
from hookcli.hooks.torch_private.programs import as_written
from hookcli.reporters.report_page import ReportPage
from hookcli.sources.base import Loss
from hookcli.table import Finding, Report, Row
from hookcli.table.meta import Meta, only
from hookcli.table.names import around
from hookcli.tensors.random_state import others_run_on
from hookcli.tensors.torch_private import noted

_SHOWN = (*LAYOUT, "activations", "grads", "settings", "parameters")


@dataclass(frozen=True)
class Examination:
    """The report of the checks and the reports that they read."""

    report: Report
    measured: Sequence[Report] = ()
    error: ModelError | None = None
    further: Sequence[Report] = ()
    """Reports that no check reads, of a run examined `in_full`."""

    @property
    def shown(self) -> list[Report]:
        """The reports for people: the findings, then the figures of modules and parameters."""
        probes = _SHOWN if self.report.meta.get("device") != "meta" else LAYOUT
        measured = [r for r in self.measured if not (self.further and r.probe == "shapes")]  # another run's
        reports = [r for r in (*measured, *self.further) if r.probe in probes and (r.rows or not self.error)]
        return [self.report, *sorted(reports, key=lambda report: _SHOWN.index(report.probe))]

    @property
    def kept(self) -> tuple[list[Report], Mapping[str, Any]]:
        """The reports for a baseline and the `meta` of their run."""
        by_name = {report.probe: report for report in self.measured}
        reports = [by_name[probe] for probe in ("settings", "shapes", "activations", "grads") if probe in by_name]
        return reports, by_name["activations"].meta if "activations" in by_name else {}


def check(
    model: nn.Module,
    *inputs: Any,
    loss: str | Loss | None = None,
    save: str | None = None,
    name: str | None = None,
    **settings: Any,
) -> Report:
    """Run the model once on `inputs`, in its present mode, and judge the run as `hookcli check` does.

    `inputs`, `loss` and keywords other than settings are as in `capture`; without a loss, neither given
    nor returned by the model, gradients start from a random projection of the outputs.
    `save` is a file that gets a baseline, unless the model crashes. The settings, all optional: `select` and `ignore`
    take ids, names or beginnings of ids; `thresholds` maps ids or names to figures, budgets ("max-params") among them;
    `expect_output` says what the model returns; `backward=False` runs no backward pass; `repeat` runs the model so
    often and compares the results; `split_batch` compares with halves of the batch; `against` is a file with a baseline
    of this `name`, compared within `rtol` and `atol`: give both runs the same values, under the same seed.
    `ops="functions"` judges operators, too. `compile` is a backend or mode of torch.compile (True: the default), under
    which the model runs once more; what the process has compiled before is then compiled again (torch.compiler.reset).

    Returns a report with `findings`; a model that crashes is such a finding. Parameters, gradients, buffers, modes and
    random state are afterwards as they were. Raises UsageError for unknown names.
    """
    plan, call = plan_of("check", model, inputs, settings, keep=save is not None)
    model, wrapped = as_written(model)
    with wrapped:
        examination = examine(PreparedRun.of(model, call, Step(loss=loss), name), plan)
    if save is not None and not examination.error:
        add_baselines(save, [Baseline.of(*examination.kept)])
    return examination.report


def plan_of(
    function: str, model: Any, inputs: Sequence[Any], settings: Mapping[str, Any], *, keep: bool = False
) -> tuple[CheckPlan, Any]:
    """The plan of a function's settings, and the model's inputs: keywords that are not settings are among them.

    Raises UsageError for what is not a module, TypeError for a keyword that the model does not take either.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"{function} needs an nn.Module, not {type(model).__name__}")
    names = SETTINGS
    keywords = {name: value for name, value in settings.items() if name not in names}
    call = as_called(function, model, inputs, keywords, names)
    return make_plan(**{name: settings[name] for name in names if name in settings}, keep=keep), call


def examine(
    run: PreparedRun,
    plan: CheckPlan,
    shapes: Callable[[], Report] | None = None,
    layout: Layout | None = None,
    *,
    in_full: bool = False,
    edits: Edits = (),
    subject: Subject | None = None,
) -> Examination:
    """Judge a prepared run by a plan. `shapes` makes the report of MACs that checks read, else the run's model does.
    `subject` is what capabilities measure for their checks, by default the run as it is.

    `in_full`: measure in the same run everything that a page shows, whether a check reads it or not, and then `layout`:
    the shapes, costs and flow of that run, without values. `edits` change tensors in that run, not in later ones.
    """
    started, own = time.perf_counter(), ProgramClock.total
    examiner = Examiner(run, plan, in_full, edits)
    with others_run_on():
        measured = examiner.measured(shapes or examiner.shapes, layout or examiner.layout)
        measured = examiner.with_capabilities(measured, subject or Subject(run, run.step, plan.backward))
    if measured.baseline and measured.activations and not examiner.error:
        measured.baseline.require_same_run(measured.activations.meta)
    checks = with_crash(plan.checks) if examiner.error else plan.checks
    judgement = judge(checks, measured, values=examiner.values)
    meta = _described(run, measured)
    notes = [*judgement.notes]
    if measured.compilation:
        notes.append(measured.compilation.remark)
    if ":" in (compiled := str(meta.get("compiled", ""))):  # how far looks inside moved the results
        notes.append(f"inside the compiled model, {compiled}")
    calls = _calls(judgement.findings, measured)
    located = [_located(one, run.model, call) for one, call in zip(judgement.findings, calls, strict=True)]
    judgement = replace(judgement, findings=located, notes=notes)
    meta["seconds"] = time.perf_counter() - started
    meta["hookcli_seconds"] = ProgramClock.total - own
    report = judgement.report(run.name, meta, modules=len([*run.model.modules()]))
    rows = [Row({**row.values, "source": call}) if call else row for row, call in zip(report.rows, calls, strict=True)]
    reports = (measured.inventory, measured.activations, measured.grads, measured.settings, measured.shapes)
    return Examination(replace(report, rows=rows), [r for r in reports if r], examiner.error, examiner.further)


def _described(run: PreparedRun, measured: Measurements) -> Meta:
    """The `meta` of a run that was measured for checks."""
    meta: Meta = {**noted(measured.inventory.meta if measured.inventory else finished(run.info))}
    if measured.activations:
        meta |= only(measured.activations.meta, "compiled")
    if measured.eval_outputs and measured.eval_outputs.gradients:
        meta["gradients"] = f"{GRADIENTS} in eval mode"
    return meta


def _calls(findings: Sequence[Finding], measured: Measurements) -> list[str]:
    """The file and line of the operator's call that each finding is about; "" for another place."""
    sources = _sources(measured.inventory.rows if measured.inventory else ())
    sources |= {one.fqn: one.source for one in (measured.crash, measured.eval_crash) if one and one.source}
    in_eval = {**sources}
    for run in (measured.eval_outputs, measured.hidden):
        in_eval |= _sources(run.inventory if run else ())
    return [(in_eval if one.message.startswith(IN_EVAL) else sources).get(one.fqn, "") for one in findings]


def _sources(rows: Sequence[Row]) -> dict[str, str]:
    """The file and line of each operator's call, by the operator's fqn."""
    return {row.fqn: str(row["source"]) for row in rows if row.get("source")}


def _is_here(file: str) -> bool:
    """True for a file in the working directory."""
    return not Path(file).is_absolute() and Path(file).is_file()


def _located(finding: Finding, model: nn.Module, call: str) -> Finding:
    """Add a file and line in the working directory: of an operator's `call`, else of the innermost module there."""
    if finding.file:
        return finding
    file, _, line = call.rpartition(":")
    if file and _is_here(file):
        return replace(finding, file=file, line=int(line))
    modules = dict(model.named_modules())
    for fqn in (finding.fqn, *around(finding.fqn)):
        members = vars(type(modules[fqn])).values() if fqn in modules else ()
        functions = [inspect.unwrap(value) for value in members if isinstance(value, FunctionType)]
        codes = (function.__code__ for function in functions if isinstance(function, FunctionType))
        places = ((code.co_firstlineno, shown_path(code.co_filename)) for code in codes)
        if here := [(number, path) for number, path in places if _is_here(path)]:  # the first method of a class
            return replace(finding, file=min(here)[1], line=min(here)[0])
    return finding


def report(
    model: Any,
    *inputs: Any,
    loss: str | Loss | None = None,
    name: str | None = None,
    **settings: Any,
) -> ReportPage:
    """Run the model once on `inputs`, in its present mode, and return everything that was measured, as a page.

    Takes the same arguments as `hookcli.check`, and leaves the model as it was, too. A model that
    fails is a finding, and the page ends there.
    """
    plan, call = plan_of("report", model, inputs, settings)
    model, wrapped = as_written(model)
    with wrapped:
        examination = examine(PreparedRun.of(model, call, Step(loss=loss), name), plan, in_full=True)
    return ReportPage(examination.shown, examination.error)

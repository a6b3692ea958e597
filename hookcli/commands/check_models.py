"""Checks models one after the other and writes one report: the work of `hookcli check`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hookcli import registry
from hookcli.checks.crash import Crash, with_crash
from hookcli.checks.judgement import fails, judge, with_advice
from hookcli.checks.lost import LostCheck
from hookcli.checks.measurements import Measurements
from hookcli.commands.cached_report import CachedReport
from hookcli.commands.check_config import Job
from hookcli.commands.destination import check_writable
from hookcli.commands.model import find_recipe
from hookcli.commands.next_command import in_advice, next_command
from hookcli.commands.options import Options
from hookcli.commands.output import Output, remark
from hookcli.commands.probe_command import edits_of, feedback_of, setting_of
from hookcli.commands.progress import Progress, import_torch, working
from hookcli.commands.run_options import StepOptions
from hookcli.diff.baseline import Baseline, add_baselines, read_baselines
from hookcli.errors import HookcliError, ModelError, UsageError, message_of
from hookcli.system.files import exists
from hookcli.system.streams import say
from hookcli.table import Report
from hookcli.table.columns.layouts import FINDINGS

if TYPE_CHECKING:
    from hookcli.engine.checking import Examination
    from hookcli.engine.setting import Setting


def check_models(jobs: Sequence[Job], options: Options, files: Sequence[str] = ()) -> int:
    """Check each model and write the findings, also to `files`. Returns 1 if one is as severe as --fail-on says.

    A model that can't be built or run does not stop the others. Its error is raised at the end, so that the exit code
    is 2; a crash is also a finding in the report.
    """
    outputs = [Output(options), *(Output(replace(options, output=file, format=None), "--report") for file in files)]
    for output in outputs:
        output.check_columns(FINDINGS)
    reports: list[list[Report]] = []  # of each model: the findings, then the reports that the checks read
    errors: list[tuple[str, HookcliError]] = []
    baselines: list[Baseline] = []
    if save := jobs[0].settings["save"]:
        check_writable(Path(save), "--save")  # before the run, not after
        if exists(save):
            read_baselines(save)
    try:
        with working(options, torch=False) as progress:
            for number, job in enumerate(jobs, 1):
                progress.part(f"model {number} of {len(jobs)}" if len(jobs) > 1 else "")
                reports += _checked(job, jobs[0].options, progress, errors, baselines)
    finally:  # even after Ctrl-C
        error = _ending(errors)
        unwritten = _write(outputs, reports, error) if reports else []
    if baselines:
        add_baselines(save, baselines)
        remark(f"saved the baseline of {', '.join(one.model for one in baselines)} in {save}", options)
    if unwritten and not errors:
        raise unwritten[0]
    for problem in unwritten:
        say(f"warning: {problem}")
    if error:
        lone = len(errors) == 1 and isinstance(error, ModelError)
        error.shown = lone and outputs[0].takes_errors and not unwritten
        raise error
    return int(fails([findings for findings, *_ in reports], jobs[0].settings["fail_on"]))


def _ending(errors: Sequence[tuple[str, HookcliError]]) -> HookcliError | None:
    """The error that ends the command: one model's, or one that names all of several."""
    if len(errors) < 2:
        return next((error for _, error in errors), None)
    lines = [f"  {spec}: {str(error).partition(chr(10))[0]}" for spec, error in errors]
    return ModelError("\n".join([f"{len(errors)} models could not be fully checked", *lines]))


def _checked(
    job: Job, options: Options, progress: Progress, errors: list[tuple[str, HookcliError]], baselines: list[Baseline]
) -> list[list[Report]]:
    """The reports of a job, none if its model can't be found; adds its error, or its baseline if one is saved."""
    # If it needs no values, and runs no code but hookcli's and libraries'.
    others = [one for one in job.plan.checks if isinstance(one, LostCheck) or registry.external(one)]
    wanted = job.settings["cache"] and job.settings["meta"] and job.settings["loss"] is None and not others
    settings = {name: value for name, value in job.settings.items() if name not in ("config", "report")}
    cached = CachedReport("check", job.spec, job.options, wanted, settings)
    if reports := cached.get():
        return [reports]
    import_torch(options, progress)
    try:
        examination = examined(job, progress)
    except HookcliError as error:
        errors.append((job.spec, job.located(error)))
        return [[crashed(job, error)]] if isinstance(error, ModelError) else []
    if examination.error:
        errors.append((job.spec, examination.error))
        return [examination.shown]
    cached.put(examination.shown)
    if job.settings["save"]:
        baselines.append(Baseline.of(*examination.kept))
    return [examination.shown]


def _write(
    outputs: Sequence[Output], reports: Sequence[Sequence[Report]], ending: HookcliError | None
) -> list[HookcliError]:
    """Write to each output, even if another fails (stdout may be full while the file of --report is not)."""
    failed = []
    for output in outputs:
        written = [report for of_model in reports for report in (of_model if output.with_figures else of_model[:1])]
        try:
            output.write(written, mixed=output.with_figures, error=ending)
        except HookcliError as error:
            failed.append(error)
    return failed


def crashed(job: Job, error: ModelError) -> Report:
    """The report of a model that could not be built."""
    judgement = judge(with_crash(job.plan.checks), Measurements(crash=error))
    report = judgement.report(job.spec, {"complete": False, "error": str(error).partition("\n")[0]})
    return _with_next(report, job)


def _with_next(report: Report, job: Job) -> Report:
    """The report with commands that run as they stand: in its advice, and as the next if there is a finding."""
    step = StepOptions(loss=job.settings["loss"], backward_vector=report.meta.get("backward_vector"))
    report = with_advice(report, lambda text: in_advice(text, job.spec, job.options, step, job.settings))
    for finding in report.findings[:1]:
        command = next_command(finding, job.spec, job.options, step, job.settings)
        if finding.check == Crash.id and job.settings["compile"]:
            command += f" --compile={shlex.quote(job.settings['compile'])}"
        report = replace(report, meta={**report.meta, "next": command})
    return report


def examined(job: Job, progress: Progress, *, in_full: bool = False) -> Examination:
    """Build a job's model, run it and judge it; `in_full` as in `examine`. Raises UsageError and ModelError."""
    from hookcli.engine.capture import Hooking, capture_recipe
    from hookcli.engine.checking import examine
    from hookcli.engine.examiner import Subject
    from hookcli.engine.prepare import prepare_run, runs_only_for_real
    from hookcli.engine.spared import layout_probes

    options, settings = job.options, job.settings
    step, edits = replace(StepOptions(settings["loss"]).make(), backward=True), edits_of(options)
    recipe = find_recipe(job.spec, options)
    setting = _setting(options, bool(settings["meta"]))
    feedback = feedback_of(options, progress)
    capture = partial(capture_recipe, recipe, hooking=Hooking(fastpath=options.fastpath), feedback=feedback)
    try:
        run = prepare_run(recipe, setting, step, feedback)
        examination = examine(
            run,
            job.plan,
            lambda: capture("shapes", setting_of(options, bool(options.train)))[0],
            partial(capture, layout_probes(), setting, hooking=Hooking(fastpath=options.fastpath, ops=job.plan.ops)),
            in_full=in_full,
            edits=edits,
            subject=Subject(run, step, settings["backward"], recipe, setting, settings),
        )
        if settings["meta"] and examination.error and runs_only_for_real(examination.error):
            raise examination.error
    except ModelError as error:
        if settings["meta"] and runs_only_for_real(error):
            reason = message_of(error.__cause__ or error).partition("\n")[0]
            wrong = f"--meta: {recipe.name} reads values while it runs ({reason}): remove --meta"
            raise UsageError(wrong, option="meta") from error
        raise
    if job.plan.against and not examination.error:
        for text in job.plan.against.of(recipe.name).notes(*examination.kept):
            remark(text, options)
    report = examination.report
    report = replace(report, meta={**report.meta, "fail_on": settings["fail_on"]})
    return replace(examination, report=_with_next(report, job))


def _setting(options: Options, meta: bool) -> Setting:
    """The setting of a check: training mode unless --eval is given, and a batch of two."""
    from hookcli.engine.setting import META

    train = options.train is not False
    setting = replace(setting_of(options, train, targets=True), natural_batch=2)
    if setting.device == META and not meta:
        raise UsageError("--device meta: no values to check; --meta runs the checks that need none", option="device")
    return replace(setting, device=META) if meta else setting

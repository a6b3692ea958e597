"""The verdict of the checks on a record: on the steps of each model, on the run as a whole, and whether it fails."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hookcli.checks.base import Check
from hookcli.checks.causes import first_causes
from hookcli.checks.compiling import CompiledAgain, GraphBroken, LeftUncompiled, RecompileLimit
from hookcli.checks.judgement import Judgement, judge, with_advice
from hookcli.checks.losses import LossJumped, LossNotFinite
from hookcli.checks.measurements import Measurements
from hookcli.checks.selection import of_whole_runs
from hookcli.checks.training import UpdateTooLarge
from hookcli.record.file.parsing import PART_KINDS
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import PartLine, RecordedStep
from hookcli.registry import load
from hookcli.registry.pieces import answers
from hookcli.table import INFO, SEVERITIES, Finding, Report
from hookcli.table.losses import LossCourse


def whole_run(record: Record, model: str) -> Measurements:
    """Return what checks read that judge the whole training of a model: its losses, and the lines of parts on it."""
    lines: dict[str, list[PartLine]] = {kind: [] for kind in PART_KINDS}
    for line in record.of_parts:
        if line.model == model:
            lines[line.kind].append(line)
    losses = record.courses().get(model, LossCourse())
    return Measurements(losses=losses, every_loss=record.losses_of(model), lines=lines)


def judged(record: Record, step: RecordedStep) -> RecordedStep:
    """Return the step with the verdict of the checks on its model's whole run; as it is if it has none.

    It then also covers the loss of every step and the lines of parts, names the script in its advice, and says how many
    forwards without gradients it covers.
    """
    verdict = step.verdict
    if verdict is None:
        return step
    losses, ran = record.courses().get(step.model), record.ran.get(step.model, {})
    trains = any((entry.model, entry.phase) == (step.model, "train") for entry in record.entries)
    if (step.phase == "train" or not trains) and losses and losses.known:
        verdict = _with_losses(verdict, losses, whole_run(record, step.model))
    if ran.get("no_grad_forwards"):
        forwards = {"forwards": ran.get("recorded_forwards", 0), "of_forwards": ran["no_grad_forwards"]}
        of_steps = () if step.phase == "train" else ("steps", "of_steps", "losses")
        totals = {key: value for key, value in verdict.totals.items() if key not in of_steps}
        verdict = replace(verdict, totals=totals | forwards)
    return step.with_verdict(with_script(verdict, record))


def _with_losses(report: Report, losses: LossCourse, measured: Measurements) -> Report:
    of_lines = (check for check in of_whole_runs() if check.reads)
    of_run = judge([*_OF_LOSSES, *of_lines], measured)
    found_at = report.meta.get("found_at", {})
    early = [one for one in report.findings if found_at.get(one.check, losses.first_fault) < losses.first_fault]
    causes = [one for one in early if one.check in LossNotFinite.follows]
    after = [_after(causes, one) for one in of_run.findings]
    findings = [*causes, *after, *explained([one for one in report.findings if one not in causes], early, after)]
    findings.sort(key=lambda one: [*SEVERITIES, INFO].index(one.severity))
    skipped = [*report.skipped, *of_run.skipped]
    though = report.totals.get("though", "")
    failed = report.totals.get("failed_checks", 0) + of_run.failed
    whole = Judgement(findings, skipped, [*report.meta["checks"], *of_run.checks], failed=failed, though=though)
    of_steps = (
        {"steps": report.totals["steps"], "of_steps": losses.steps + losses.unknown} if "steps" in report.totals else {}
    )
    of_steps |= {"losses": losses.steps} if of_steps and losses.unknown else {}
    return whole.report(report.model, report.meta, modules=report.totals["modules"], **of_steps)


def explained(findings: Sequence[Finding], early: Sequence[Finding], of_run: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings on steps, with their causes among those on the run: `early` ones came before its losses'."""
    lasting = [one for one in of_run if one.check not in {check.id for check in _OF_LOSSES}]
    for finding in findings:
        yield _after(lasting if finding in early else of_run, finding)


_OF_LOSSES: Sequence[Check] = (LossNotFinite(), LossJumped(), UpdateTooLarge())


def _after(causes: Sequence[Finding], finding: Finding) -> Finding:
    """The finding, with the first of these as its cause that it may follow from, if no other is known."""
    follows = load("checks", finding.check).follows if causes and not finding.cause else ()
    cause = next((one.name for one in causes if one.check in follows), "")
    return replace(finding, cause=cause) if cause else finding


def verdict_on(record: Record, *, compiling_alone: bool = False) -> list[Report]:
    """Return the verdict of the checks on the run as a whole, if they found anything: on the work of torch.compile in
    its program, and, unless `compiling_alone`, of the capabilities' checks that judge whole records.
    """
    of_records = (check for check in of_whole_runs() if "record" in check.needs and not compiling_alone)
    checks = (GraphBroken(), CompiledAgain(), RecompileLimit(), LeftUncompiled(), *of_records)
    judgement = judge(checks, Measurements(compilation=record.end.compilation if record.end else None, record=record))
    report = replace(judgement, skipped=()).report(record.header.name if record.header else "", {})
    return [with_script(report, record)] if judgement.findings else []


def with_script(report: Report, record: Record) -> Report:
    """Return the report with the script, as it was typed, in the commands that its advice names."""
    return with_advice(report, lambda text: text.replace("SCRIPT", script_of(record) or "SCRIPT"))


def script_of(record: Record) -> str:
    """Return the script and its arguments, as typed; "" where only a part of them is known."""
    header = record.header
    named = header and header.name.removesuffix(f" on {header.ranks:,} ranks").endswith(".py")
    return shlex.join(header.argv) if header and named else ""


def causes(record: Record) -> dict[str, str]:
    """The first error that the checks of causes found in each model's training, with what to try.

    blocks: no gradient reached any of 36 parameters: it ran in a reentrant checkpoint ...; call checkpoint(...)
    """
    entries = [entry for entry in record.entries if entry.phase == "train"]
    latest = {entry.model: entry for entry in entries}
    first: dict[str, str] = {}
    for step in record.last(entry for entry in entries if latest[entry.model].errors):
        errors = first_causes(one for report in judged(record, step).reports for one in report.findings)
        if errors:
            first[step.model] = ": ".join(filter(None, (errors[0].fqn, f"{errors[0].message}; {errors[0].remedy}")))
    return first


def part_fault(record: Record, brief: bool = False) -> str:
    """Why a part of a capability lets `run` end with exit code 1; in brief if the summary has `brief` more."""
    return next((str(fault) for _, fault in answers("fault", record, brief) if fault), "")

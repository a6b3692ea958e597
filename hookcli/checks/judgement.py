"""Run the checks on what was measured, and make a report of their findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from hookcli.checks.base import ERROR, INFO, WARNING, Check
from hookcli.checks.causes import causes_first
from hookcli.checks.measurements import Measurements
from hookcli.errors import PluginError, UserCode, class_name, in_brief
from hookcli.table import Finding, Reason, Report, Row, Skipped
from hookcli.table.columns.layouts import FINDINGS
from hookcli.table.meta import Meta, with_notes

PROBE = "check"
_CRASHED = "the run crashed"


@dataclass(frozen=True)
class Judgement:
    """The findings of checks, what they could not judge and why, the ids of those that judged, and remarks."""

    findings: Sequence[Finding]
    skipped: Sequence[Skipped]
    checks: Sequence[str]
    notes: Sequence[str] = ()

    def report(self, model: str, meta: Meta, modules: int = 0) -> Report:
        """The report: a row per finding, and in `totals` how many checks were made on how many modules."""
        count = Counter(finding.severity for finding in self.findings)
        totals = {"errors": count[ERROR], "warnings": count[WARNING], "checks": len(self.checks), "modules": modules}
        totals |= {"infos": count[INFO]} if count[INFO] else {}
        meta = with_notes({**meta, "checks": list(self.checks)}, *self.notes)
        rows = []
        for finding in self.findings:
            values = {key: value for key, value in asdict(finding).items() if key not in ("file", "line")}
            rows.append(Row(values | {"source": finding.file and f"{finding.file}:{finding.line}"}))
        return Report(PROBE, model, FINDINGS, rows, meta, totals, self.skipped, self.findings, grouping="list")


def judge(checks: Sequence[Check], measured: Measurements, *, values: bool = True) -> Judgement:
    """Run the checks on what was measured; `values` is False on the meta device.

    After a crash nothing is known of the rest of the run, so a check that found nothing until then did not judge it.
    """
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    judged: list[str] = []
    notes: list[str] = []
    for check in checks:
        reason = _why_not(check, measured, values)
        items = [] if reason else _judged(check, measured)
        of_check = [item for item in items if isinstance(item, Finding)]
        if measured.crash and check.needs and not of_check:
            reason = _CRASHED
        if reason:
            skipped.append(Skipped(f"{check.id} {check.name}", f"not judged: {reason}", kind=Reason.NOT_JUDGED))
            continue
        judged.append(check.id)
        findings += of_check
        skipped += [item for item in items if isinstance(item, Skipped)]
        notes += filter(None, [] if of_check else [check.near(measured)])
    findings = causes_first(findings, checks, measured)
    return Judgement(findings, list(dict.fromkeys(skipped)), judged, notes)


def _judged(check: Check, measured: Measurements) -> list[Finding | Skipped]:
    with UserCode(lambda error: PluginError(f"check {check.id} failed: {in_brief(error)}")):  # it may be another's
        items = list(check.judge(measured))
        if odd := [item for item in items if not isinstance(item, (Finding, Skipped))]:
            raise TypeError(f"judge() gave {class_name(odd[0])}, not a Finding or Skipped")
        return items


def _why_not(check: Check, measured: Measurements, values: bool) -> str | None:
    if check.values and not values:
        return "it needs values, which the meta device does not have"
    if check.whole and measured.crash:
        return _CRASHED
    lacking = [name for name in check.needs if getattr(measured, name) is None]
    return measured.missing.get(lacking[0], f"{lacking[0]} was not measured") if lacking else None


def fails(reports: Iterable[Report], severity: str) -> bool:
    """True if any finding is at least as bad as this severity."""
    return any(finding.fails(severity) for report in reports for finding in report.findings)

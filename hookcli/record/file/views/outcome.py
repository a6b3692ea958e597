"""What a run comes to: the judged reports of its steps, and whether it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from hookcli.checks.base import ERROR, WARNING
from hookcli.checks.judgement import PROBE, fails
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.views.headlines import Aside, Fault, said_by_parts, wrong_lines
from hookcli.record.file.views.run_lines import non_finite_line
from hookcli.record.file.views.verdict import judged, part_fault, verdict_on
from hookcli.table import Report
from hookcli.table.formatting import counted
from hookcli.table.losses import faults

_FAULT = "the first line names a fault"


def judged_reports(
    record: Record, steps: Iterable[RecordedStep], shown: Callable[[RecordedStep], list[Report]], *, whole: bool = True
) -> list[Report]:
    """Return the reports of these steps, judged, as `shown` makes them of each; of a `whole` record then the verdict on
    the run, if the verdicts on steps are among them.
    """
    reports = [report for step in steps for report in shown(judged(record, step))]
    if whole and any(report.probe == PROBE for report in reports):
        reports += verdict_on(record)
        named = any(not isinstance(line, Aside) for line in wrong_lines(record))
        reports = [beside_fault(report) for report in reports] if named else reports
    return reports


def beside_fault(report: Report) -> Report:
    """Return the report; a verdict says that the first line names a fault, where the checks themselves passed."""
    if report.probe != PROBE or fails([report], WARNING):
        return report
    though = ", and ".join(filter(None, (report.totals.get("though"), _FAULT)))
    return replace(report, totals={**report.totals, "though": though})


def fault(record: Record, checked: bool = True, *, brief: bool = False) -> str:
    """Return the fault that a part found; if `checked`, also a loss that was not finite, errors of the checks, or the
    fault that a capability names in the first line.

    In brief if the summary has `brief` more; "" if there is none.
    """
    if (fault_text := part_fault(record, brief)) or not checked:
        return fault_text
    if lost := faults(record.courses()) or "".join(map(non_finite_line, record.non_finite[:1])):
        return "a value was not finite" if brief else lost
    return found_by_checks(record) or named_first(record, brief)


def found_by_checks(record: Record) -> str:
    """The errors that checks have found, in words; "" without any."""
    of_steps = (one for step in record.last() for report in judged(record, step).reports for one in report.findings)
    if errors := sum(one.fails(ERROR) for one in of_steps):
        return f"{counted(errors, 'error')} in the recorded steps"
    of_run = (one for report in verdict_on(record) for one in report.findings)
    return next((one.message for one in of_run if one.fails(ERROR)), "")


def named_first(record: Record, brief: bool) -> str:
    """The fault that a capability names in the first line; "" if none does."""
    named = next((line for line in said_by_parts(record) if isinstance(line, Fault)), "")
    return _FAULT if named and brief else str(named)

"""Which reports can be compared."""

from __future__ import annotations

from hookcli.errors import UsageError
from hookcli.table import Report

_UNFIT = ("diff", "check", "flow")


def check_pair(a: Report, b: Report) -> None:
    """Raise UsageError for reports that can't be compared with each other."""
    if a.probe != b.probe:
        raise UsageError(f"A is a report of {a.probe}, B of {b.probe}: compare reports of one command")
    if said := unfit(a):
        raise UsageError(f"reports of {a.probe} can't be compared{said}")


def unfit(report: Report) -> str:
    """The reason why a report can't be compared, after "can't be compared"; "" if it can."""
    if report.probe in _UNFIT or report.grouping != "nested":
        return "; those of shapes, inputs, activations and grads can"
    if not any(column.name == "fqn" for column in report.columns):
        return ": their rows are not places in a model"
    return ""

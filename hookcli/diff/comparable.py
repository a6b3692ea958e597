"""The pairs of reports that can be compared, and the `meta` of their comparison."""

from __future__ import annotations

from hookcli.errors import UsageError
from hookcli.table import Report
from hookcli.table.meta import Meta, made

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


def of_both(a: Meta, b: Meta) -> Meta:
    """The entries that both runs of a comparison share, `A → B` for texts that differ, and both sides whole."""
    shared: dict[str, object] = {}
    for key, value in a.items():
        other = b.get(key)
        if value == other and value is not None:
            shared[key] = value
        elif isinstance(value, str) and isinstance(other, str):
            shared[key] = f"{value} → {other}"
    return {**made(shared.items()), "a": a, "b": b}

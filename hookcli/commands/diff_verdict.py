"""Writes a comparison of `hookcli diff`, and tells its exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hookcli.commands.diff_kinds import Asked
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import salvaging
from hookcli.diff.rows import beyond, unlike
from hookcli.diff.settings import advice
from hookcli.errors import UsageError
from hookcli.table import Report
from hookcli.table.columns.layouts import DUMPED, with_operators
from hookcli.table.meta import WEIGHTS

_SENTENCES = ("settings", "structure", WEIGHTS, "times")


def compare_tensors(asked: Asked, runs: Callable[[], Callable[..., Any]]) -> int:
    """Write a comparison, tensor by tensor, by runs whose class `runs` imports, with torch."""
    output = Output(asked.options)
    output.check_columns(with_operators(DUMPED))
    with salvaging(output) as progress:
        made = runs()(asked.options, asked.step, asked.typed, asked.tolerance, progress)
        report = made.compare(asked.a, asked.b)
    return judged([report], output)


def judged(reports: Sequence[Report], output: Output) -> int:
    """Write the comparison, and remark on what its format does not show. Returns 1 if the sides differ."""
    compared = any(report.totals["compared"] for report in reports)
    error = None if compared else UsageError("nothing to compare: the two sides have no module in common")
    output.write(reports, error=error)
    for report in reports:
        lines: list[str | None] = [unlike(report)]
        if not output.for_people:
            totals = report.totals
            counts = f"{totals['beyond']:,} of {totals['compared']:,} beyond tolerance"
            lines += [f"{totals['verdict']}; {counts}", *map(totals.get, _SENTENCES)]
        if (allow := advice(report.findings)) and not any(row.get("beyond") for row in report.rows):
            lines.append(f"exit code 1: settings differ ({allow} allows that)")
        for text in lines:
            remark(text, output.options)
    if error:
        raise error
    return int(beyond(reports))

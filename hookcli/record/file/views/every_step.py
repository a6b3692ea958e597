"""Every recorded step as reports whose rows name their step, for tables and for programs that chart many steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

from hookcli.record.file.record_lines import Header, RecordedStep
from hookcli.record.file.views.over_time import has_figures, model_report, model_row
from hookcli.record.file.views.overview import findings, overview, probe_reports
from hookcli.table import Report, columns_named
from hookcli.table.columns.recorded import WHEN
from hookcli.table.meta import Meta


def every_step(steps: Iterable[RecordedStep], header: Header | None, probe: str | None = None) -> Iterator[Report]:
    """Yield the reports of each step: that of one `probe`; else "step", "run", "optimizer" and "check".

    "step" has one row, the figures of the whole model as `show --over-time .` has them; "run" has a row per module, as
    `show` has it; "optimizer" a row per parameter group; "check" the findings, if there were checks. The meta of each
    report also says what was run.
    """
    said: Meta = about(header) if header else {}
    for step in steps:
        for report in probe_reports(step, probe) if probe else _joined(step):
            yield _dated(replace(report, meta={**said, **report.meta}), step)


def _joined(step: RecordedStep) -> Iterator[Report]:
    joined = overview(step)
    row = model_row(step, joined)
    if has_figures(row):
        over_time = model_report(step.model, step.phase, [row]).columns
        columns = (*columns_named("fqn"), *over_time, *columns_named("plain_seconds"))
        rows = [replace(row, values={**row.values, "plain_seconds": step.plain_seconds})]
        yield Report("step", step.model, columns, rows, joined.meta, grouping="list")
    yield joined
    yield from probe_reports(step, "optimizer")
    yield from findings(step)


def _dated(report: Report, step: RecordedStep) -> Report:
    when = {"step": step.step, "phase": step.phase, "forward": step.forward}
    columns = (*WHEN, *(column for column in report.columns if column.name not in when))
    return replace(
        report, columns=columns, rows=[replace(row, values={**when, **row.values, **when}) for row in report.rows]
    )


def about(header: Header) -> Meta:
    """Return what was run, with which versions, and how it was recorded."""
    command = shlex.join(header.argv)
    meta: Meta = {"script": header.name, "command": command, "started": header.started, "every": header.every}
    return {**meta, **cast("Meta", header.versions)}

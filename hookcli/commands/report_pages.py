"""The pages of a model and of a record: the work of `hookcli report MODEL` and `hookcli report RECORD`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookcli.commands.check_config import Job
from hookcli.commands.check_models import crashed, examined
from hookcli.commands.progress import Progress, working
from hookcli.commands.report_file import Page
from hookcli.commands.show import lacking
from hookcli.errors import ModelError
from hookcli.record.file.page.record_page import RecordPage
from hookcli.record.file.ranks.ranked_record import open_record
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import StepEntry
from hookcli.table import SCHEMA, Report, formatting
from hookcli.table.columns.layouts import FINDINGS, SHAPES, STATISTICS


def report_record(name: str, page: Page, source: Path | None = None) -> int:
    """Write the page of a record, or in another format the reports of its last steps; `source` is the record's file."""
    with Progress(page.options.quiet) as progress:
        progress.stage(f"reading {name}")
        steps = RecordPage(open_record(name, source))
        steps.take(told(progress, steps.record))
        payload = record_payload(steps)
    if page.output.name == "html":
        page.write_payload(payload, formatting.counted(sum(steps.counts()), "recorded step"))
    else:
        page.write([Report.from_dict(report) for report in payload["reports"]])
    return 0


def told(progress: Progress, record: Record) -> Callable[[StepEntry], None]:
    """A function that says on the progress line which step is being read."""
    last = max((entry.step for entry in record.entries), default=0)
    return lambda entry: progress.part(f"step {entry.step:,} of {last:,}")


def record_payload(
    steps: RecordPage, live: Mapping[str, object] | None = None, since: list[int] | None = None
) -> dict[str, Any]:
    """The payload of a page; `live` is for one that is served, and has the steps of each track `since` a number."""
    record = steps.record
    payload = steps.payload(_remarks(record, live is not None), since or [])
    title = record.header.name if record.header else record.path.name
    return {"schema": SCHEMA, "kind": "record", "title": title, "live": live, **payload}


def _remarks(record: Record, live: bool) -> list[str]:
    """Remarks on what the record lacks: an end, unless the page is live; steps, ranks, lines."""
    lines = [] if record.header else ["the record has no header, so the script and its settings are unknown"]
    if record.end is None and not live:
        ago = formatting.clock(max(time.time() - record.written(), 0))
        lines.append(
            f"no end is recorded: the script was killed, or still ran; the last line came {ago} before this page"
        )
    return [*lines, *lacking(record)]


def report_model(job: Job, page: Page) -> int:
    """Write the page of a model. One that crashes has the page of what was seen until then, and its error is raised."""
    for columns in (FINDINGS, SHAPES, STATISTICS):
        page.output.check_columns(columns)  # a format for one of the reports alone is refused before the run
    try:
        with working(job.options) as progress:
            examination = examined(job, progress, in_full=True)
    except ModelError as error:
        page.output.salvage([crashed(job, error)])
        raise
    page.write(examination.shown)
    if examination.error:
        raise examination.error
    return 0

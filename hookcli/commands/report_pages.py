"""The pages of a model, of a record and of two sides: the work of `hookcli report`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hookcli.commands.check_config import Job
from hookcli.commands.check_models import crashed, examined
from hookcli.commands.diff_files import both_records, is_record, narrowing, records_compared
from hookcli.commands.diff_kinds import DiffOptions
from hookcli.commands.diff_runs import model_runs, reports_of_both
from hookcli.commands.diff_sides import SideSpec, parse_side
from hookcli.commands.next_command import next_compared
from hookcli.commands.output import remark
from hookcli.commands.progress import Progress, working
from hookcli.commands.report_file import Page
from hookcli.commands.run_options import StepOptions
from hookcli.diff.rows import diff_reports, unlike
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import HookcliError, ModelError, NoGradientsError, UsageError
from hookcli.record.file.comparison.run_settings import record_remarks
from hookcli.record.file.comparison.runs import histories
from hookcli.record.file.page.record_page import RecordPage
from hookcli.record.file.ranks.ranked_record import open_record
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import StepEntry
from hookcli.record.file.views.query import Query
from hookcli.table import Report, formatting
from hookcli.table.columns.layouts import FINDINGS, SHAPES, STATISTICS
from hookcli.table.meta import with_notes

if TYPE_CHECKING:
    from hookcli.commands.diff_models import ModelRuns
    from hookcli.probes.base import Probe


def report_record(name: str, page: Page, source: Path | None = None) -> int:
    """Write the page of a record, or in another format the reports of its last steps; `source` is the record's file."""
    with Progress(page.options.quiet) as progress:
        progress.stage(f"reading {name}")
        steps = RecordPage(open_record(name, source))
        steps.take(progress_of(progress, steps.record))
        payload = steps.payload()
    if page.output.name == "html":
        page.write_payload(payload, formatting.counted(sum(steps.counts()), "recorded step"))
    else:
        page.write([Report.from_dict(report) for report in payload["reports"]])
    return 0


def progress_of(progress: Progress, record: Record) -> Callable[[StepEntry], None]:
    """A function that says on the progress line which step is being read."""
    last = max((entry.step for entry in record.entries), default=0)
    return lambda entry: progress.part(f"step {entry.step:,} of {last:,}")


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
    page.write(examination.shown, error=examination.error)
    if examination.error:
        raise examination.error
    return 0


def report_sides(a: str, b: str, own: DiffOptions, step: StepOptions, page: Page) -> int:
    """Write the page of a comparison: what `hookcli diff` reports, then what each side's own figures are.

    Two models run once in step, with a backward pass if `own` asks for it and they have gradients, and once more each.
    A failing model leaves the page of what was compared until then. Raises UsageError and ModelError.
    """
    tolerance = Tolerance(own.rtol, own.atol)
    if is_record(a) or is_record(b):
        records = both_records(a, b)
        first, *others = records_compared(records, tolerance, narrowing(page.options), page.options)
        notes = list(record_remarks(*records))
        for text in notes:
            remark(text, page.options)
        history: list[Report] = []
        with suppress(UsageError):  # neither has a figure of the whole model
            history = histories(records, Query(over_time="."))
        noted = replace(first, meta=with_notes(first.meta, *notes))
        return _write_sides([noted, *others, *history], page)
    sides = [parse_side(label, text, page.options) for label, text in (("A", a), ("B", b))]
    try:
        with working(page.options, torch=False) as progress:
            if any(side.file for side in sides):
                ours, theirs = reports_of_both(sides, page.options, partial(model_runs, page.options, progress, step))
                compared = diff_reports(ours, theirs, tolerance)
                for text in map(unlike, compared):
                    remark(text, page.options)
                reports = [*compared, *_labelled("a", ours), *_labelled("b", theirs)]
            else:
                runs = model_runs(page.options, progress, step, own.backward)
                reports = _of_models(sides, tolerance, own, step, runs)
    except (HookcliError, KeyboardInterrupt) as error:
        if measured := getattr(error, "reports", ()):
            page.output.salvage(measured)
        raise
    return _write_sides(reports, page)


def _write_sides(reports: Sequence[Report], page: Page) -> int:
    for report in reports:
        if report.probe == "diff":
            remark(report.totals["verdict"], page.options)
    page.write(reports)
    return 0


def _of_models(
    sides: Sequence[SideSpec], tolerance: Tolerance, own: DiffOptions, step: StepOptions, live: ModelRuns
) -> list[Report]:
    """The comparison of two models, and the reports of each. Without gradients only their forwards are compared."""
    pair = live.pair(sides[0], sides[1], own.same_weights)
    try:
        compared = live.compare(pair, tolerance)
    except NoGradientsError as error:
        remark(f"{error}; only forward is compared", live.options)
        live = replace(live, backward=False)
        compared = live.compare(pair, tolerance)
    options = replace(live.options, output=None, format=None)
    reports = [next_compared(compared, sides, own, step, options)]
    for number, built in enumerate(pair.built):
        for probes in _probes(live.backward):
            inputs, data = pair.common.first[number], pair.common.of_side(number)
            reports += _labelled("ab"[number], live.observed(built, inputs, pair.common.described, probes, data=data))
    return reports


def _probes(backward: bool) -> Iterator[list[Probe]]:
    """The probes of a side's runs: operations are seen apart, since that changes the last bits of values."""
    from hookcli.engine.spared import LAYOUT, spared
    from hookcli.probes.activations import ActivationsProbe
    from hookcli.probes.grads import GradsProbe
    from hookcli.probes.parameters import ParametersProbe
    from hookcli.probes.shapes import ShapesProbe

    yield [ShapesProbe(memory=False), *(spared(name) for name in LAYOUT if name != "shapes")]
    gradients = [GradsProbe(hist=True), GradsProbe("outputs", hist=True)] if backward else []
    yield [ActivationsProbe(hist=True), *gradients, ParametersProbe()]


def _labelled(side: str, reports: Iterable[Report]) -> list[Report]:
    return [replace(report, meta={**report.meta, "side": side}) for report in reports]

"""Compares any number of records: the work of `hookcli show A B C`, and of `hookcli report A B C`."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.commands.diff_files import is_record
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import Progress
from hookcli.commands.report_file import Page
from hookcli.errors import UsageError
from hookcli.record.file.comparison.run_settings import ending_remarks
from hookcli.record.file.comparison.runs import charted, histories, runs
from hookcli.record.file.ranks.ranked_record import open_record
from hookcli.record.file.reading import Record
from hookcli.record.file.views.query import Query
from hookcli.table import Report
from hookcli.table.columns.recorded import RUNS
from hookcli.table.formatting import letter
from hookcli.table.validation import HEADLINES


def show_runs(names: Sequence[str], query: Query, output: Output, smooth: int | None, x: str) -> int:
    """Write a row for each run, then their figures over steps beside each other. Raises UsageError."""
    if output.options.ranks != "merged":
        raise UsageError(f"--ranks {output.options.ranks}: is for one record; leave it out, or the others")
    with Progress(output.options.quiet) as progress:
        records = _opened(names, progress)
        tables, charts = runs(records, query.model), histories(records, query)
    for report in charts:
        output.check_columns(report.columns)
    reports = charted(charts, smooth, x) if smooth or x == "time" else charts
    if output.takes(RUNS) and not (output.options.columns or output.options.sort):  # which belong to charts
        reports = [*tables, *reports]
    else:
        _say_verdicts(tables, output)
    _say_endings(records, output)
    output.write(reports)
    return 0


def report_runs(names: Sequence[str], page: Page) -> int:
    """Write the page of more than two records. Raises UsageError."""
    with Progress(page.options.quiet) as progress:
        records = _opened(names, progress)
        tables, charts = runs(records), histories(records, Query(over_time="."))
    _say_verdicts(tables, page.output)
    _say_endings(records, page.output)
    page.write([*(tables if page.output.takes(RUNS) else ()), *charts], f"{len(names)} runs")
    return 0


def _say_verdicts(tables: Sequence[Report], output: Output) -> None:
    for table in tables:
        for key in filter(table.totals.get, HEADLINES):
            remark(table.totals[key], output.options)


def _opened(names: Sequence[str], progress: Progress) -> list[Record]:
    records = []
    for name in names:
        if not is_record(name):
            raise UsageError(f"{name}: is not a record of hookcli run; several can be compared only if all are records")
        progress.stage(f"reading {name}")
        records.append(open_record(name))
    return records


def _say_endings(records: Sequence[Record], output: Output) -> None:
    for place, record in enumerate(records):
        for text in ending_remarks(letter(place), record):
            remark(text, output.options)

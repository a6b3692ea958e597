"""hookcli show"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from hookcli.commands.meant_commands import require_own_kind
from hookcli.commands.option_fields import OnlyFields, option
from hookcli.commands.options import SHOWING, Options
from hookcli.commands.output import Output, remark
from hookcli.commands.processes import parse_ranks
from hookcli.commands.progress import Progress
from hookcli.errors import UsageError, shortened, unknown
from hookcli.record.file.comparison.runs import charted
from hookcli.record.file.latest import latest_record
from hookcli.record.file.ranks.ranked_record import RankedRecord, open_record
from hookcli.record.file.reading import Record
from hookcli.record.file.views.headlines import first_bad_lines, parted, wrong_lines
from hookcli.record.file.views.query import Query, Selection
from hookcli.record.file.views.ranks_view import lacking, ranks_beside
from hookcli.record.file.views.run_lines import compiled_lines, ran_line
from hookcli.system.escaping import shell_path
from hookcli.system.files import at_rest, is_pipe, opened
from hookcli.table import Report, formatting
from hookcli.table.columns.recorded import EVERY_STEP
from hookcli.table.files import read_reports, unfamiliar
from hookcli.table.ranks import ranks_named

EXAMPLES = (
    "hookcli show train.run.jsonl",
    "hookcli show train.run.jsonl --step 200 --probe grads",
    "hookcli show train.run.jsonl --over-time layer4.2.conv3",
    "hookcli show a.run.jsonl b.run.jsonl c.run.jsonl --smooth 10",
    "hookcli show train.run.jsonl --follow",
    "hookcli show train.run.jsonl -f tensorboard -o runs/train",
    "hookcli show train.run.jsonl --step all -o train.parquet",
    "hookcli show before.json --format markdown",
)
FIRST = "step probe over_time follow format output depth model smooth sort columns"
AXES = ("step", "time")
_DIGITS = 18  # int() refuses thousands of digits


@dataclass(frozen=True)
class ShowOptions:
    """Options of `hookcli show`: which part of a record to show."""

    panel = "Selection"

    step: str | None = option(
        None, "A recorded step, or all; by default the last of each model and phase (exports: all).", metavar="N|all"
    )
    model: str | None = option(None, "Only this model.", metavar="NAME", blank=True)
    phase: str | None = option(None, "Only this phase.", metavar="train|no_grad")
    probe: str | None = option(None, "Only this probe, such as grads [all, joined].", metavar="NAME")
    over_time: str | None = option(
        None, "Draw a module or parameter over time; . is the model.", metavar="NAME", blank=True
    )
    match: str | None = option(
        None,
        "Chart a column (--over-time COLUMN) of the modules or parameters that match.",
        metavar="PATTERN",
        blank=True,
    )
    against: str | None = option(
        None, "Chart this second record over the first (of --over-time, else of the model).", metavar="RECORD"
    )
    smooth: int | None = option(None, "Chart means over the last N steps, except of settings.", metavar="N", min=1)
    x: str = option("step", "Horizontal axis of charts.", "--x", metavar="step|time")
    follow: bool = option(False, "Keep showing while the record is written.")

    def query(self, several: bool = False) -> Query:
        """The part of one record, or of several. Raises UsageError for options that contradict each other."""
        chart, over_time, step = "", self.over_time, None
        if over_time is not None:
            chart = "--over-time"
        elif several:
            chart, over_time = "--against" if self.against else "several records", "."
        if self.x not in AXES:
            raise UsageError(unknown("--x", self.x, AXES))
        if not chart and (self.smooth or self.x == "time"):
            name = "--smooth" if self.smooth else "--x time"
            raise UsageError(f"{name}: is for charts; add --over-time . for the model's figures, or a second record")
        for name, value in (("--step", self.step), ("--probe", self.probe)):
            if chart and value is not None:
                raise UsageError(f"{name} and {chart}: a chart shows all steps, with all probes; leave one out")
        if self.match is not None and self.over_time is None:
            raise UsageError("--match: is for charts of a column; add --over-time COLUMN, as in --over-time std")
        if self.step not in (None, "all"):
            if not re.fullmatch(rf"[0-9]{{1,{_DIGITS}}}", self.step):
                raise UsageError(f"--step {shortened(self.step)!r}: give a number from 0, or all")
            step = int(self.step)
        phase = self.phase and self.phase.replace(" ", "_")  # tables have it in two words
        return Query(step, self.model, phase, self.probe, over_time, self.step == "all", self.match)


def show(
    records: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECORD]...",
            help="Records from hookcli run, or a saved JSON report; files or folders [the latest record].",
            show_default=False,
        ),
    ] = None,
    *,
    which: ShowOptions,
    options: Annotated[Options, OnlyFields(("depth", "ranks", *SHOWING))],
) -> int:
    """Show a record from `hookcli run`, or a saved report.

    Prints tables; `hookcli report` writes a page with charts to keep and send.

    A record has a row per module: statistics of its output, L2 norms of the gradients of its output and parameters, and
    the size of the last update relative to the weights. With several records, compares the runs: which has the lowest
    loss, how they differ, and a chart of each figure over steps. Does not import torch.
    """
    record, *others = [*(records or [str(latest_record())]), *([which.against] if which.against else [])]
    for one in [record, *others]:
        require_own_kind(one, "record")
    path = Path(record)
    query = which.query(bool(others))
    output = Output(options, default="table" if query.over_time is None else "chart")
    if which.follow and others:
        raise UsageError(
            f"--follow shows one record as it grows; leave out {'--against' if which.against else others[0]}"
        )
    if others:
        from hookcli.commands.show_runs import show_runs

        return show_runs([record, *others], query, output, which.smooth, which.x)
    if which.follow and is_pipe(path):
        raise UsageError(f"{path}: is a pipe, which is shown once it ends; leave out --follow")
    with at_rest(path) as source:
        if _shows_report(record, source, query, which.follow, output):
            return 0
        if which.follow:
            from hookcli.commands.show_follow import follow as follow_record

            return follow_record(path, query, output)
        with Progress(options.quiet) as progress:
            progress.stage(f"reading {path}")
            return _show(query.within(open_record(path, source)), output, progress, which)


def _shows_report(name: str, source: Path, query: Query, follow: bool, output: Output) -> bool:
    """Write the reports in a file, if it is one JSON document over several lines, as `--format json` writes it.

    Raises UsageError for options that a saved report does not take.
    """
    try:
        with opened(source) as file:
            begin = bytes(file.read(64))
    except OSError:
        return False
    if begin.split(b"\n")[0].strip() != b"{" and source.suffix != ".json":
        return False
    settings = asdict(query) | {"step": "all" if query.every_step else query.step, "every_step": None}
    typed = [f"--{name.replace('_', '-')}" for name, value in settings.items() if value is not None]
    if follow or typed:
        raise UsageError(f"{Path(name)}: is a saved report; {(typed or ['--follow'])[0]} is for records of hookcli run")
    reports = read_reports(name, source)
    remark(unfamiliar(name, reports), output.options)
    for report in reports:
        output.check_columns(report.columns)
    output.write(reports)
    return True


def _show(selection: Selection, output: Output, progress: Progress, which: ShowOptions) -> int:
    """Write the reports to stdout; to stderr, how the run ended and what it lacks."""
    record = selection.record
    if selection.every_step or (output.exports and selection.over_time is None):
        if output.options.ranks != "merged":
            one_step = f"--ranks {output.options.ranks} shows one step"
            raise UsageError(f"{one_step}; give --step N, and a format such as table")
        return _show_each(selection, output, progress)
    reports = _of_ranks(selection, output.options.ranks)
    if selection.over_time is not None and (which.smooth or which.x == "time"):
        reports = charted(reports, which.smooth, which.x)
    if not (output.options.columns or output.options.sort):  # which the rows before a non-finite value may lack
        reports += selection.non_finite()
    progress.end()
    for report in reports:
        output.check_columns(report.columns)
    for text in remarks(record):
        remark(text, output.options)
    if isinstance(record, RankedRecord) and output.options.ranks == "merged":
        remark(f"ranks side by side: hookcli show {shell_path(record.path)} --ranks each", output.options)
    output.write(reports if output.name == "table" else _with_verdict(reports, record))
    return 0


def _with_verdict(reports: list[Report], record: Record) -> list[Report]:
    """The reports, of which the first has the verdict on the run in its totals; beside a table it is a remark."""
    if not reports or reports[0].probe != "run":
        return reports
    wrong, _ = parted(wrong_lines(record, *first_bad_lines(record)))
    ran = ran_line(record.header, record.end, record.path) if record.header else ""
    verdict = "; ".join(wrong) or ran
    return [replace(reports[0], totals={"verdict": verdict, **reports[0].totals}), *reports[1:]]


def _of_ranks(selection: Selection, ranks: str) -> list[Report]:
    """The selected reports, of all ranks together or of ranks beside each other. Raises UsageError."""
    reports, record = selection.reports(), selection.record
    if ranks == "merged":
        return reports
    if not isinstance(record, RankedRecord):
        raise UsageError(f"--ranks {ranks}: {record.path} is the record of one process; give the folder of its ranks")
    asked = parse_ranks(ranks, record.ranks)
    if gone := [rank for rank in asked or () if rank not in record.parts]:
        raise UsageError(f"--ranks {ranks}: no part of {ranks_named(gone)} is in {record.path}")
    return ranks_beside(record, selection, asked)


def _show_each(selection: Selection, output: Output, progress: Progress) -> int:
    """Write the reports of every selected step. The remarks come after, since damage shows when steps are read."""
    record = selection.record
    if not selection.probe:
        output.check_columns(EVERY_STEP)
    last = max((entry.step for entry in record.entries), default=0)

    def each() -> Iterator[Report]:
        for report in selection.each():
            progress.part(f"step {report.meta.get('step', 0):,} of {last:,}")
            yield report

    reports: Iterable[Report] = each()
    if not output.exports:  # an export takes the steps one by one
        reports = list(reports)
        progress.end()
    output.write(reports, mixed=not selection.probe)
    progress.end()
    for text in remarks(record):
        remark(text, output.options)
    return 0


def remarks(record: Record) -> list[str]:
    """Remarks, one per line: how the run ended, the first non-finite value, and what the record lacks."""
    lines, unfaulty = parted(wrong_lines(record))
    if record.header:
        lines += [ran_line(record.header, record.end, record.path, record.courses())]
    else:
        error = f"; it ended with {record.end.error}" if record.end and record.end.error else ""
        lines += [f"{record.path}: has no header, so the script and its settings are unknown{error}"]
    if record.end is None:
        ago = time.time() - record.written()
        lines.append(f"the last line came {formatting.clock(max(ago, 0))} ago (--follow waits for more)")
    lines += compiled_lines(record.end)
    return [*lines, *first_bad_lines(record), *unfaulty, *lacking(record)]

"""hookcli show"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hookcli.commands.options import SHOWING, Options
from hookcli.commands.output import Output, remark
from hookcli.errors import UsageError
from hookcli.record.file.choice import Choice
from hookcli.record.file.reading import Record, read_record
from hookcli.record.file.summary import bad_line, ran_line
from hookcli.report import Report, formatting
from hookcli.report.files import read_reports
from hookcli.system.files import at_rest, is_pipe

OPTIONS = ("depth", *SHOWING)
EXAMPLES = (
    "hookcli show train.run.jsonl",
    "hookcli show train.run.jsonl --step 200 --probe grads",
    "hookcli show train.run.jsonl --over-time layer4.2.conv3",
    "hookcli show train.run.jsonl --follow",
    "hookcli show before.json --format markdown",
)
_PANEL = "Which"


def _which(metavar: str, text: str, **settings: Any) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=_PANEL, **settings)


def show(
    record: Annotated[str, typer.Argument(metavar="RECORD", help="What hookcli run wrote, or a report saved as JSON.")],
    step: Annotated[int | None, _which("N", "This step's windows [the last of each model and phase].", min=0)] = None,
    model: Annotated[str | None, _which("NAME", "Of one model.")] = None,
    phase: Annotated[str | None, _which("train|no_grad", "Of one phase.")] = None,
    probe: Annotated[str | None, _which("NAME", "activations, grads, updates ... by itself [all joined].")] = None,
    over_time: Annotated[
        str | None, _which("NAME", "Charts of a module or a parameter, step by step; . is the model.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on while the record is written.", rich_help_panel=_PANEL)
    ] = False,
    *,
    options: Options,
) -> int:
    """What a record of hookcli run holds, or a saved report, in any format.

    A row per module: statistics of what it returned, L2 norms of its output's gradient and of its parameters', and the
    size of the last update beside that of the weights. Imports no torch.
    """
    path = Path(record)
    choice = Choice(step, model, phase, probe, over_time)
    _check(choice)
    output = Output(options, default="table" if over_time is None else "chart")
    if follow and is_pipe(path):
        raise UsageError(f"{path}: is a pipe, which is shown when it ends; leave out --follow")
    with at_rest(path) as source:
        if _is_report(source):
            _check_report(path, choice, follow)
            return _write(output, read_reports(record, source))
        if follow:
            from hookcli.commands.following import follow as follow_record

            return follow_record(path, choice, output)
        return _show(read_record(path, source), choice, output)


def _check(choice: Choice) -> None:
    over_time = choice.over_time is not None
    for name, given in (("--step", choice.step is not None), ("--probe", choice.probe is not None)):
        if over_time and given:
            raise UsageError(f"{name} and --over-time: the latter shows all steps, all probes joined; leave one out")


def _is_report(path: Path) -> bool:
    """Whether it is one JSON document over several lines, as `--format json` writes it."""
    try:
        with path.open("rb") as file:
            return file.read(64).split(b"\n")[0].strip() == b"{" or path.suffix == ".json"
    except (OSError, ValueError):
        return False


def _check_report(path: Path, choice: Choice, follow: bool) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in asdict(choice).items() if value is not None]
    if follow or given:
        raise UsageError(f"{path}: is a saved report; {(given or ['--follow'])[0]} goes with a record of hookcli run")


def _show(record: Record, choice: Choice, output: Output) -> int:
    """The reports on stdout, and on stderr how the run ended and what the record lacks."""
    reports = choice.reports(record)
    if not (output.options.columns or output.options.sort):  # which the rows before what was bad need not have
        reports += choice.bad(record)
    for report in reports:
        output.check_columns(report.columns)
    for text in said(record):
        remark(text, output.options)
    output.write(reports)
    return 0


def _write(output: Output, reports: list[Report]) -> int:
    for report in reports:
        output.check_columns(report.columns)
    output.write(reports)
    return 0


def said(record: Record) -> list[str]:
    """How the run ended, what was not finite, and what the record lacks, a line each."""
    if record.header:
        lines = [ran_line(record.header, record.end, record.path)]
    else:
        error = f"; it ended with {record.end.error}" if record.end and record.end.error else ""
        lines = [f"{record.path}: has no header; what was run, and how, is not known{error}"]
    if record.end is None:
        ago = time.time() - record.path.stat().st_mtime
        lines.append(f"the last line came {formatting.clock(max(ago, 0))} ago (--follow waits for more)")
    lines += [] if record.places else ["no window was recorded: nothing was looked at"]
    lines += [bad_line(bad) for bad in record.bad[:1]]
    damage = record.said_of_damage()
    return [*lines, *([damage] if damage else [])]

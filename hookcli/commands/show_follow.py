"""Follows a growing record: `hookcli show --follow`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from hookcli.commands.output import Output, remark
from hookcli.errors import UsageError, shortened
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import PartLine, RecordedStep
from hookcli.record.file.tail import Tail, tail_of
from hookcli.record.file.views.over_time import every_step
from hookcli.record.file.views.overview import overview
from hookcli.record.file.views.query import NothingToShowError, Query
from hookcli.record.file.views.run_lines import non_finite_line, ran_line
from hookcli.reporters import selection
from hookcli.system.escaping import visible
from hookcli.system.files import exists, is_folder
from hookcli.system.stdout import require_stdout, write_report
from hookcli.system.streams import is_terminal, remarks_on, terminal_size
from hookcli.table import Report, formatting
from hookcli.table.columns.recorded import EVERY_STEP, STEP
from hookcli.table.merge import gathered

_PAUSE = 0.25  # seconds between two reads of the file
_QUIET = 60.0  # seconds without a new line before a remark


def follow(path: Path, query: Query, output: Output) -> int:
    """Show a record while it is written: the latest steps on a terminal, a line per step in a pipe, or an export.

    Ends with the record, or by Ctrl-C. Raises UsageError if no such file can exist.
    """
    tail = _tail(path, query, output)
    if not exists(tail.path):
        remark(f"{path}: does not exist yet; waiting for it", output.options)
    if query.probe is None and query.over_time is None:
        output.check_columns(EVERY_STEP if output.exports else STEP)  # now, not when the first step comes
    try:
        if output.exports:
            export(tail, query, output)
        elif is_terminal(require_stdout()):
            _on_terminal(tail, query, output)
        else:
            _print_lines(tail, query, output)
    except BrokenPipeError:  # the reader has closed the pipe (`| head`)
        return 0
    except OSError as error:  # the terminal is gone
        raise UsageError(f"{path}: can't be followed ({error.strerror})") from error
    finally:
        tail.close()
    record = tail.record
    if record.header:
        remark(ran_line(record.header, record.end, path, record.courses()), output.options)
    remark(record.damage(), output.options)
    return 0


def _tail(path: Path, query: Query, output: Output) -> Tail:
    """The record to follow. Raises UsageError for options that do not go with it, and if no such file can exist."""
    if output.exports:
        if output.name not in selection.live():
            grow = " and ".join(selection.live())
            raise UsageError(f"--follow: {output.name} is written once the record is whole; {grow} grow with it")
        if query.step is not None or query.over_time is not None:
            raise UsageError("--follow exports all steps as they come; leave out --step and --over-time")
    elif query.step is not None or query.every_step or output.path or output.name not in ("table", "chart"):
        raise UsageError("--follow shows the latest steps as they come; leave out --step, --output and --format")
    if output.options.ranks != "merged":
        raise UsageError(f"--ranks {output.options.ranks} and --follow: leave one out; --follow merges the ranks")
    tail = tail_of(path)
    if exists(tail.path):
        return tail
    if not is_folder(path.parent):
        raise UsageError(f"{path}: no such file, and no folder {path.parent}/ to wait in")
    try:
        with suppress(FileNotFoundError):
            path.lstat()
    except (OSError, ValueError) as error:  # too long a name, or null characters
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{shortened(str(path))}: can't be a file ({why})") from error
    return tail


def _changes(tail: Tail, output: Output, over: Callable[[], bool] = lambda: False) -> Iterator[Record]:
    """Yield the record whenever it has grown, until it ends, or `over` says so and nothing more comes."""
    remarked = False
    while tail.record.end is None:
        last_look = over()
        if tail.poll():
            yield tail.record
            remarked = False
            continue
        if last_look:
            return
        last = tail.changed()
        if last is not None and not remarked and time.time() - last > _QUIET:
            ago = formatting.clock(time.time() - last)
            remark(f"the last line came {ago} ago, without an end; waiting for more (Ctrl-C ends)", output.options)
            remarked = True
        time.sleep(_PAUSE)


def export(tail: Tail, query: Query, output: Output, over: Callable[[], bool] = lambda: False) -> None:
    """Export the steps of a record as they come; ends with the record, or when `over` says that nothing more comes."""

    def arriving() -> Iterator[Report]:
        """Yield the reports of steps that were finished, also of a new run that replaces the file."""
        latest: Record | None = None
        seen = 0
        for record in _changes(tail, output, over):
            latest, seen = record, seen if record is latest else 0
            entries = query.of(entry for entry in record.entries[seen:] if record.counts(entry))
            seen = len(record.entries)
            yield from every_step(record, entries, query.probe)

    output.write(arriving(), mixed=not query.probe, growing=True)


def _print_lines(tail: Tail, query: Query, output: Output) -> None:
    """Print each step, and the first non-finite value, as they come."""
    latest: Record | None = None
    steps = values = 0
    printed: list[PartLine] = []
    for record in _changes(tail, output):
        if record is not latest:  # a new run has replaced the file
            latest, steps, values, printed = record, 0, 0, []
        lines = [_line(step) for step in record.steps(query.of(record.entries[steps:]))]
        lines += map(non_finite_line, record.non_finite[values:])
        lines += (one.said for one in record.of_parts if one.said and one not in printed)
        for line in lines:
            if not write_report(f"{visible(line)}\n"):
                raise BrokenPipeError
        steps, values, printed = len(record.entries), len(record.non_finite), [*record.of_parts]


def _line(step: RecordedStep) -> str:
    """Write a step as one line: `Net  step 200  train  loss 0.6931  gradient 13.00  |dw|/|w| 1.000e-03  2 NaN`."""
    report = overview(step)
    whole = gathered(report.rows)
    figures = ("gradient", whole["param_grad"]), ("|dw|/|w|", whole["ratio"])
    words = [f"loss {formatting.loss(step.loss)}"] if step.loss is not None else []
    words += [f"{name} {formatting.number(value)}" for name, value in figures if value is not None]
    for key, name in (("nan", "NaN"), ("inf", "Inf")):
        count = sum(row.get(key) or 0 for row in report.rows) + (whole[f"grad_{key}"] or 0)
        words += [f"{count:,.0f} {name}"] if count else []
    return "  ".join([step.model, f"step {step.step}", step.phase, *words])


def _on_terminal(tail: Tail, query: Query, output: Output) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    stream = require_stdout()
    columns, lines = terminal_size(stream)
    console = Console(file=stream, no_color=not output.view.color, width=columns, height=lines)
    both = is_terminal(sys.stderr)  # then Rich prints remarks above the tables
    waiting = Text(f"waiting for {visible(str(tail.path))}")
    with (
        Live(waiting, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=both) as live,
        remarks_on(sys.stderr),
    ):
        printed: list[PartLine] = []
        for record in _changes(tail, output):
            for one in record.of_parts:
                if one.said and one.is_news and one not in printed:
                    remark(one.said, output.options)
            printed = [*record.of_parts]
            if query.of(record.entries):
                with suppress(NothingToShowError):  # the next step may be complete
                    live.update(Text.from_ansi(output.rendered(query.within(record).reports())), refresh=True)

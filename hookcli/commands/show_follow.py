"""Follows a growing record: `hookcli show --follow`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hookcli.commands.output import Output, remark
from hookcli.errors import UsageError, shortened
from hookcli.record.file.overview import COLUMNS, overview
from hookcli.record.file.query import NothingToShowError, Query
from hookcli.record.file.ranked_tail import tail_of
from hookcli.record.file.reading import Record
from hookcli.record.file.record import RecordedStep
from hookcli.record.file.summary import non_finite_line, ran_line
from hookcli.record.file.tail import Tail
from hookcli.report import formatting
from hookcli.report.norms import gathered
from hookcli.system.escaping import visible
from hookcli.system.files import exists, is_folder
from hookcli.system.stdout import require_stdout, write_report
from hookcli.system.streams import is_terminal, remarks_on, terminal_size

_PAUSE = 0.25  # seconds between two reads of the file
_QUIET = 60.0  # seconds without a new line before a remark


def follow(path: Path, query: Query, output: Output) -> int:
    """Show a record while it is written: the latest steps on a terminal, a line per step in a pipe.

    Ends with the record, or by Ctrl-C. Raises UsageError if no such file can exist.
    """
    if query.step is not None or output.path or output.options.format not in (None, "table", "chart"):
        raise UsageError("--follow shows the latest steps as they come; leave out --step, --output and --format")
    if output.options.ranks != "merged":
        raise UsageError(f"--ranks {output.options.ranks} and --follow: leave one out; --follow merges the ranks")
    tail = tail_of(path)
    if not exists(tail.path):
        _require_folder(path)
        remark(f"{path}: does not exist yet; waiting for it", output.options)
    if query.probe is None and query.over_time is None:
        output.check_columns(COLUMNS)  # now, not when the first step comes
    on_terminal = is_terminal(require_stdout())
    try:
        if on_terminal:
            _on_terminal(tail, query, output)
        else:
            _watch(tail, output, _Lines(query))
    except BrokenPipeError:  # the reader has closed the pipe (`| head`)
        return 0
    except OSError as error:  # the terminal is gone
        raise UsageError(f"{path}: can't be followed ({error.strerror})") from error
    finally:
        tail.close()
    if tail.record.header:
        remark(ran_line(tail.record.header, tail.record.end, path), output.options)
    if damage := tail.record.damage():
        remark(damage, output.options)
    return 0


def _require_folder(path: Path) -> None:
    """Raise UsageError if such a file can't be created."""
    if not is_folder(path.parent):
        raise UsageError(f"{path}: no such file, and no folder {path.parent}/ to wait in")
    try:
        with suppress(FileNotFoundError):
            path.lstat()
    except (OSError, ValueError) as error:  # too long a name, or null characters
        raise UsageError(
            f"{shortened(str(path))}: can't be a file ({getattr(error, 'strerror', None) or error})"
        ) from error


def _watch(tail: Tail, output: Output, changed: Callable[[Record], None]) -> None:
    """Read the file until the record ends; remark once if no line comes for a minute."""
    said = False
    while tail.record.end is None:
        if tail.poll():
            changed(tail.record)
            said = False
            continue
        last = tail.changed()
        if last is not None and not said and time.time() - last > _QUIET:
            ago = formatting.clock(time.time() - last)
            remark(f"the last line came {ago} ago, without an end; waiting for more (Ctrl-C ends)", output.options)
            said = True
        time.sleep(_PAUSE)


class _Lines:
    """Prints the steps that came since the last call, and the first non-finite value."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._record: Record | None = None
        self._shown = self._non_finite = 0

    def __call__(self, record: Record) -> None:
        if record is not self._record:  # a new run has replaced the file
            self._record, self._shown, self._non_finite = record, 0, 0
        for step in record.steps(self._query.of(record.entries[self._shown :])):
            _print(_line(step))
        for found in record.non_finite[self._non_finite :]:
            _print(non_finite_line(found))
        self._shown, self._non_finite = len(record.entries), len(record.non_finite)


def _print(line: str) -> None:
    if not write_report(f"{visible(line)}\n"):
        raise BrokenPipeError


def _line(step: RecordedStep) -> str:
    """Write a step as one line: `Net  step 200  train  loss 0.6931  gradient 13.00  |dw|/|w| 1.000e-03  2 NaN`."""
    report = overview(step)
    whole = gathered(report.rows)
    figures = {
        "loss": step.loss,
        "gradient": whole["param_grad"],
        "|dw|/|w|": whole["ratio"],
    }
    written = {name: formatting.loss if name == "loss" else formatting.number for name in figures}
    said = [f"{name} {written[name](value)}" for name, value in figures.items() if value is not None]
    for what in ("nan", "inf"):
        count = sum(row.get(what) or 0 for row in report.rows) + (whole[f"grad_{what}"] or 0)
        said += [f"{count:,.0f} {'NaN' if what == 'nan' else 'Inf'}"] if count else []
    return "  ".join([step.model, f"step {step.step}", step.phase, *said])


def _on_terminal(tail: Tail, query: Query, output: Output) -> None:
    """Show the tables or charts of the latest steps in place of earlier ones."""
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

        def changed(record: Record) -> None:
            if query.of(record.entries):
                with suppress(NothingToShowError):  # the next step may be complete
                    live.update(Text.from_ansi(output.rendered(query.reports(record))), refresh=True)

        _watch(tail, output, changed)

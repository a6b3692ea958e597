"""hookcli show --follow"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hookcli.commands.output import Output, remark
from hookcli.errors import UsageError, shortened
from hookcli.record.file.choice import Choice, NothingToShowError
from hookcli.record.file.overview import COLUMNS, overview
from hookcli.record.file.reading import Record
from hookcli.record.file.record import Window
from hookcli.record.file.summary import bad_line, ran_line
from hookcli.record.file.tail import Tail
from hookcli.report import formatting
from hookcli.report.norms import gathered
from hookcli.system.escaping import visible
from hookcli.system.files import exists, is_folder
from hookcli.system.stdout import require_stdout, write_report
from hookcli.system.streams import is_terminal, remarks_on, terminal_size

_PAUSE = 0.25  # seconds between two looks at the file
_QUIET = 60.0  # seconds without a line after which that is said


def follow(path: Path, choice: Choice, output: Output) -> int:
    """Show what is written as it comes: on a terminal always the latest, in a pipe a line per window.

    Ends with the record, or by Ctrl-C. Raises UsageError where there can't be such a file.
    """
    if choice.step is not None or output.path or output.options.format not in (None, "table", "chart"):
        raise UsageError("--follow: shows the latest as it comes; leave out --step, --output and --format")
    if is_folder(path):
        raise UsageError(f"{path}: is a folder; give a record in it")
    if not exists(path):
        _require_place(path)
        remark(f"{path}: not there yet; waiting for it", output.options)
    if choice.probe is None and choice.over_time is None:
        output.check_columns(COLUMNS)  # before the first window, not when it comes
    show = _on_terminal if is_terminal(require_stdout()) else _in_pipe
    tail = Tail(path)
    try:
        show(tail, choice, output)
    except BrokenPipeError:  # a reader that has seen enough (`| head`)
        return 0
    except OSError as error:  # a terminal that is gone
        raise UsageError(f"{path}: can't be followed ({error.strerror})") from error
    finally:
        tail.close()
    if tail.record.header:
        remark(ran_line(tail.record.header, tail.record.end, path), output.options)
    if damage := tail.record.said_of_damage():
        remark(damage, output.options)
    return 0


def _require_place(path: Path) -> None:
    """Raises UsageError where there can't come to be such a file."""
    if not is_folder(path.parent):
        raise UsageError(f"{path}: no such file, and no folder {path.parent}/ in which to wait for it")
    try:
        with suppress(FileNotFoundError):
            path.lstat()
    except (OSError, ValueError) as error:  # a name that is too long, or no text
        raise UsageError(
            f"{shortened(str(path))}: can't be a file ({getattr(error, 'strerror', None) or error})"
        ) from error


def _watch(tail: Tail, output: Output, changed: Callable[[Record], None]) -> None:
    """Look at the file until the record ends; say once where nothing comes for long."""
    said = False
    while tail.record.end is None:
        if tail.poll():
            changed(tail.record)
            said = False
            continue
        last = tail.changed()
        if last is not None and not said and time.time() - last > _QUIET:
            ago = formatting.clock(time.time() - last)
            remark(f"the last line came {ago} ago, and no end; waiting for more (Ctrl-C ends)", output.options)
            said = True
        time.sleep(_PAUSE)


def _in_pipe(tail: Tail, choice: Choice, output: Output) -> None:
    """A line per window that is asked for."""
    _watch(tail, output, _Lines(choice))


class _Lines:
    """Prints the windows that came since the last time, and what was not finite."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._record: Record | None = None
        self._shown = self._bad = 0

    def __call__(self, record: Record) -> None:
        if record is not self._record:  # a new run's, in the place of the one before
            self._record, self._shown, self._bad = record, 0, 0
        for window in record.windows(self._choice.of(record.places[self._shown :])):
            _print(_line(window))
        for bad in record.bad[self._bad :]:
            _print(bad_line(bad))
        self._shown, self._bad = len(record.places), len(record.bad)


def _print(line: str) -> None:
    if not write_report(f"{visible(line)}\n"):
        raise BrokenPipeError


def _line(window: Window) -> str:
    """Net  step 200  train  loss 0.6931  gradient 13.00  |dw|/|w| 1.000e-03  2 NaN"""
    report = overview(window)
    whole = gathered(report.rows)
    figures = {
        "loss": window.loss,
        "gradient": whole["param_grad"],
        "|dw|/|w|": whole["ratio"],
    }
    written = {name: formatting.loss if name == "loss" else formatting.number for name in figures}
    said = [f"{name} {written[name](value)}" for name, value in figures.items() if value is not None]
    for what in ("nan", "inf"):
        count = sum(row.get(what) or 0 for row in report.rows) + (whole[f"grad_{what}"] or 0)
        said += [f"{count:,.0f} {'NaN' if what == 'nan' else 'Inf'}"] if count else []
    return "  ".join([window.model, f"step {window.step}", window.phase, *said])


def _on_terminal(tail: Tail, choice: Choice, output: Output) -> None:
    """The tables or charts of the latest, in the place of those before."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    stream = require_stdout()
    columns, lines = terminal_size(stream)
    console = Console(file=stream, no_color=not output.view.color, width=columns, height=lines)
    both = is_terminal(sys.stderr)  # then Rich's stream puts remarks above the tables
    waiting = Text(f"waiting for {visible(str(tail.path))}")
    with (
        Live(waiting, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=both) as live,
        remarks_on(sys.stderr),
    ):

        def changed(record: Record) -> None:
            if choice.of(record.places):
                with suppress(NothingToShowError):  # the next window may be whole
                    live.update(Text.from_ansi(output.rendered(choice.reports(record))), refresh=True)

        _watch(tail, output, changed)

"""The progress of a run: a status line on a terminal, after the first second."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from hookcli.commands.options import Options
from hookcli.commands.output import Output
from hookcli.commands.short_warnings import short_warnings
from hookcli.errors import HookcliError, ToldError
from hookcli.system import streams
from hookcli.system.escaping import visible
from hookcli.system.streams import show_status, shows_status, terminal_size
from hookcli.system.torchrun import world
from hookcli.table import Report
from hookcli.table.formatting import clock, size

if TYPE_CHECKING:
    from hookcli.tensors.files.statistics import Told
    from hookcli.tensors.files.stored import StoredTensor

_PATIENCE = 1.0
_TICK = 0.125
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@contextmanager
def working(options: Options, *, torch: bool = True) -> Iterator[Progress]:
    """Show the command's progress, and its model's warnings, while the block runs, for which `torch` is imported."""
    with short_warnings(options), Progress(options.quiet) as progress:
        if torch:
            import_torch(options, progress)
        yield progress


def import_torch(options: Options, progress: Progress) -> None:
    """Import torch and set its number of threads to --threads."""
    progress.stage("importing torch")
    import torch

    progress.stage("finding the model")
    if options.threads:
        torch.set_num_threads(min(options.threads, 4 * (os.cpu_count() or 1)))  # OpenMP crashes with far more


@contextmanager
def salvaging(output: Output, *, torch: bool = True) -> Iterator[Progress]:
    """Do as `working`; if the block fails, the rank that reports this writes the reports of what was seen before."""
    try:
        with working(output.options, torch=torch) as progress:
            yield progress
    except (HookcliError, KeyboardInterrupt) as error:
        partial: Sequence[Report] = getattr(error, "reports", ())
        some = any(report.totals.get("compared", len(report.rows)) for report in partial)
        if some and not isinstance(error, ToldError):
            if isinstance(error, HookcliError) and output.for_people:
                verdict = " ".join(line.strip() for line in str(error).splitlines())
                partial = [replace(partial[0], totals={"verdict": verdict}), *partial[1:]]  # other totals are of a part
                error.shown = output.takes_errors
            output.salvage(partial, own=getattr(error, "own", False))
        raise


class Progress:
    """A spinner with the elapsed time, the stage and the module that runs now, after a second; a context manager.

    A thread asks for all of it, so that the run has nothing to do. It writes to the terminal directly: `sys.stdout` and
    `sys.stderr` belong to the model meanwhile.
    """

    def __init__(self, quiet: bool) -> None:
        self._on = not quiet and world().writes and shows_status()
        self._stage = "starting"
        self._part = ""
        self._position: Callable[[], str] = str
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._spin, name="hookcli-progress", daemon=True)

    def stage(self, text: str) -> None:
        """Show this text from now on, alone until `follow` adds a position."""
        self._stage, self._position = text, str

    def part(self, text: str) -> None:
        """Show this text before the stages from now on: the part of the command's work, such as "model 2 of 5"."""
        self._part = text

    def follow(self, position: Callable[[], str]) -> None:
        """Show, as long as this stage lasts, what `position` returns. Only the progress thread calls it."""
        self._position = position

    def _spin(self) -> None:
        frames = itertools.cycle(_FRAMES)
        began = time.monotonic()
        wait = _PATIENCE
        while not self._over.wait(wait):
            show_status(self._line(next(frames), time.monotonic() - began))
            wait = _TICK

    def _line(self, frame: str, seconds: float) -> str:
        """The line, at most as wide as the terminal: a line that wraps can't be taken away."""
        from rich.cells import set_cell_size

        parts = [clock(seconds), self._part, self._stage]
        with suppress(Exception):  # the run goes on meanwhile, and a line without the position is better than none
            parts.append(self._position())
        line = f"{frame} {visible(' · '.join(filter(None, parts)))}"
        line = set_cell_size(line, terminal_size(streams.remarks).columns - 1).rstrip()
        return f"\x1b[2m{line}\x1b[0m" if streams.takes_color(streams.remarks) else line

    def __enter__(self) -> Self:
        if self._on:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Take the line away for good: what follows is written."""
        self._over.set()
        if self._on:
            self._on = False
            try:
                self._thread.join()
            finally:  # also if Ctrl-C ends the wait
                show_status("")


class Position:
    """Shows which tensor is read, and how many of all bytes were."""

    def __init__(self, progress: Progress, tensors: Sequence[StoredTensor]) -> None:
        self._read, self._name = 0, ""
        whole = size(sum(tensor.nbytes for tensor in tensors))
        progress.stage("reading")
        progress.follow(lambda: f"{size(self._read)} of {whole} · {self._name}")

    def __call__(self, tensor: StoredTensor) -> Told:
        self._name = tensor.name
        return self._tell

    def _tell(self, nbytes: int) -> None:
        self._read += nbytes

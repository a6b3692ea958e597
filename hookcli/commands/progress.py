"""The progress of a run: a status line on a terminal, after the first second."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from hookcli.commands.options import Options
from hookcli.commands.output import short_warnings
from hookcli.system import streams
from hookcli.system.escaping import visible
from hookcli.system.streams import show_status, shows_status, terminal_size
from hookcli.system.torchrun import world

_PATIENCE = 1.0
_TICK = 0.1
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@contextmanager
def working(options: Options) -> Iterator[Progress]:
    """Show the command's progress, and its model's warnings, while the block runs."""
    with short_warnings(options), Progress(options.quiet) as progress:
        yield progress


class Progress:
    """A spinner with the current stage, which appears after a second; a context manager.

    It writes to the terminal directly: `sys.stdout` and `sys.stderr` belong to the model meanwhile.
    """

    def __init__(self, quiet: bool) -> None:
        self._on = not quiet and world().writes and shows_status()
        self._stage = "starting"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._spin, name="hookcli-progress", daemon=True)

    def stage(self, text: str) -> None:
        """Show this text from now on."""
        self._stage = text

    def _spin(self) -> None:
        frames = itertools.cycle(_FRAMES)
        wait = _PATIENCE
        while not self._over.wait(wait):
            show_status(self._line(next(frames)))
            wait = _TICK

    def _line(self, frame: str) -> str:
        """As wide as the terminal at most: a line that wraps can't be taken away."""
        from rich.cells import set_cell_size

        line = f"{frame} {visible(self._stage)}"
        return f"\x1b[2m{set_cell_size(line, terminal_size(streams.remarks).columns - 1).rstrip()}\x1b[0m"

    def __enter__(self) -> Self:
        if self._on:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._on:
            self._thread.join()
            show_status("")

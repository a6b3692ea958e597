"""What a run is doing, on stderr, once it has taken more than a second and if a person is watching."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any, Self

from hookcli.world import world

_PATIENCE = 1.0


class Progress:
    """A spinner that appears after a second, in a `with` block; `stage` says what is being done."""

    def __init__(self, quiet: bool) -> None:
        self._on = not quiet and sys.stderr.isatty() and world().writes
        self._stage = "starting"
        self._status: Any = None
        self._timer = threading.Timer(_PATIENCE, self._show)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._over = False

    def stage(self, text: str) -> None:
        self._stage = text
        if self._status:
            self._status.update(f"[dim]{text}[/]")

    def _show(self) -> None:
        from rich.console import Console

        with self._lock:
            if not self._over:
                self._status = Console(stderr=True).status(f"[dim]{self._stage}[/]")
                self._status.start()

    def __enter__(self) -> Self:
        if self._on:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._status:
                self._status.stop()

"""The boundary around everything hookcli does inside a program that it observes."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.signals import raised_by_signal_handler


class ErrorBoundary:
    """A `with` block that hands hookcli's own exceptions to `failed` and raises only those of signal handlers.

    A class rather than a @contextmanager, since every call of a model passes through several. The lock that lets one
    thread in at a time goes around it: Python enters a lock's exit without checking for signals, but a Ctrl-C may keep
    this one's from beginning. The program's clock stands still meanwhile.
    """

    def __init__(self, failed: Callable[[Exception], None], clock: ProgramClock) -> None:
        self._failed = failed
        self._clock = clock

    def __enter__(self) -> None:
        self._clock.enter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        self._clock.leave()
        if not isinstance(error, Exception) or raised_by_signal_handler(error):
            return False
        self._failed(error)
        return True

"""Around all that hookcli does in a program that it only looks at."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from hookcli.hooks.signals import raised_by_signal_handler


class Guard:
    """A `with` block out of which no Exception comes, but one of the program's signal handlers: `failed` is told of it.

    A class of its own, not made by @contextmanager, since each call of a model passes through several. To let one
    thread in at a time is for a lock around it: Python calls the end of a lock's block without looking for signals
    first, but not of this one's, which a Ctrl-C may keep from beginning.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or raised_by_signal_handler(error):
            return False
        self._failed(error)
        return True

"""Around all that hookcli does in a program that it only looks at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType


class Guard:
    """A `with` block that one thread runs at a time, and out of which no Exception comes: `failed` is told of it.

    A class of its own, not made by @contextmanager, since each call of a model passes through several.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._lock = threading.RLock()
        self._failed = failed

    def __enter__(self) -> None:
        try:
            self._lock.acquire()
        except BaseException:  # Ctrl-C, after which this block does not begin; RuntimeError where it came before
            with suppress(RuntimeError):
                self._lock.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        self._lock.release()
        if isinstance(error, Exception):
            self._failed(error)
            return True
        return False

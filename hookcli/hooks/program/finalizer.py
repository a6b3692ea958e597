"""Being told that something is over which an exception has ended: no hook of PyTorch's is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import ref


class Token:
    """What a hook returns, for PyTorch to keep in the frame of the call or the step; where that failed, the frame lives
    as long as the exception does."""

    __slots__ = ("__weakref__",)


class Holding(dict[str, Any]):
    """Keyword arguments, and a token that lives as long as they do."""

    def __init__(self, kwargs: dict[str, Any], token: Token) -> None:
        super().__init__(kwargs)
        self.token = token


def when_gone(token: Token, do: Callable[[], object]) -> ref[Token]:
    """Do something as the token dies, unless what is returned here dies first.

    Where nothing has failed it is to die first: Python drops what is raised in such a callback, and so a Ctrl-C.
    """

    def gone(_: ref[Token]) -> None:
        try:
            do()
        except BaseException as error:
            _dropped.append(error)

    return ref(token, gone)


_dropped: list[BaseException] = []


def raise_dropped() -> None:
    """Raise, in the main thread, the interrupt that came in such a callback."""
    if _dropped and threading.current_thread() is threading.main_thread():
        raise _dropped.pop()

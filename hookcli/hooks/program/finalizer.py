"""Finalizers for calls and steps that an exception ends: PyTorch calls no hook after them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import ref

from hookcli.tensors.tree import Kwargs


class Token:
    """Lives as long as the frame of a call or step: a hook returns it, and PyTorch keeps it in a local variable.

    The frame of a call that failed lives as long as the exception.
    """

    __slots__ = ("__weakref__",)


class KwargsWithToken(dict[str, object]):
    """Keyword arguments with a token that lives as long as they do."""

    def __init__(self, kwargs: Kwargs, token: Token) -> None:
        super().__init__(kwargs)
        self.token = token


def when_gone(token: Token, do: Callable[[], object]) -> ref[Token]:
    """Call `do` when the token dies, unless the returned reference dies first.

    Let the reference die first wherever nothing has failed: Python drops exceptions from such a callback, also the
    KeyboardInterrupt of a Ctrl-C.
    """

    def gone(_: ref[Token]) -> None:
        try:
            do()
        except BaseException as error:
            _dropped.append(error)

    return ref(token, gone)


_dropped: list[BaseException] = []


def raise_dropped() -> None:
    """Raise, in the main thread, an interrupt that came during a finalizer."""
    if _dropped and threading.current_thread() is threading.main_thread():
        raise _dropped.pop()

"""Exceptions that a program raises where hookcli runs: by its handlers of signals, which Python calls at any line."""

from __future__ import annotations

import signal
from functools import partial
from types import CodeType
from typing import Any


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program's has raised it, such as one for SIGALRM that ends a slow call."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in handlers:
        trace = trace.tb_next
    return trace is not None


def _code(handler: Any) -> CodeType | None:
    """What runs where the handler is called: of a function, a method, a partial or an object that can be called."""
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = vars(type(handler)).get("__call__")
    return getattr(function, "__code__", None)

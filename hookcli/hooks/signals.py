"""Exceptions from the program's signal handlers, which Python may call at any line, including inside hookcli."""

from __future__ import annotations

import signal
from functools import partial
from types import CodeType


def raised_by_signal_handler(error: BaseException) -> bool:
    """Return whether one of the program's signal handlers raised it, such as one for SIGALRM that ends a slow call."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in handlers:
        trace = trace.tb_next
    return trace is not None


def _code(handler: object) -> CodeType | None:
    """The code that runs when the handler (a function, method, partial or callable object) is called."""
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = vars(type(handler)).get("__call__")
    return getattr(function, "__code__", None)

"""Tells whether a signal handler raised an error: Python may call one at any line, including inside hookcli."""

from __future__ import annotations

import functools
import inspect
import signal
import traceback
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
from typing import Any


def raised_by_signal_handler(error: BaseException) -> bool:
    """Return whether one of the program's signal handlers raised it, such as one for SIGALRM that ends a slow call."""
    handlers = {code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def code_of(call: Any) -> CodeType | None:
    """The code object of a callable; None if it is written in C.

    Looks through partials and wrappers. Of a class it is the code of `__init__`, of another object that of `__call__`.
    """
    if isinstance(call, functools.partial):
        return code_of(call.func)
    if isinstance(call, MethodType):
        return code_of(call.__func__)
    if hasattr(call, "__wrapped__"):  # functools.wraps, functools.cache
        with suppress(ValueError):  # a function that wraps itself
            return code_of(inspect.unwrap(call))
    if isinstance(call, FunctionType):
        return call.__code__
    if inspect.isroutine(call):
        return None
    if isinstance(call, type):
        made_by = vars(call).get("__init__")
        return code_of(made_by) if isinstance(made_by, FunctionType) else None
    implementation = getattr(type(call), "__call__", None)  # noqa: B004 - which need not be written in Python
    return code_of(implementation) if isinstance(implementation, FunctionType) else None

"""How a script ended, and how a process ends in the same way."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from traceback import format_exception_only
from typing import NoReturn

from hookcli.errors import shortened
from hookcli.record.launching.uncaught import say, show

_WORD = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Ending:
    """What came of a script: `exit_code` as a shell sees it, one line for the exception that ended it, if one did, and
    the signal by which `python` would have ended. `finish`: what whoever ran it has yet to do, once the threads and the
    exit handlers of the script are through; a process that ends does it by itself."""

    exit_code: int
    error: str | None = None
    signal: int | None = None
    finish: Callable[[], object] = lambda: None


def ending_of(error: BaseException | None) -> Ending:
    """What an exception that left the script makes of its process. It is shown as `python` would show it."""
    if error is None:
        return Ending(0)
    if isinstance(error, SystemExit):
        return _exited(error)
    raised_by_hook = show(error)
    if isinstance(raised_by_hook, SystemExit):
        return _exited(raised_by_hook)
    line = _in_one_line(error)
    if type(error) is KeyboardInterrupt:  # a subclass ends python by exit code 1
        return Ending(128 + signal.SIGINT, line, signal.SIGINT)
    return Ending(1, line)


def leave(ending: Ending) -> NoReturn:
    """End this process as `python` would after such a script, its threads, exit handlers and `__del__` first.

    To be called where nothing catches SystemExit or KeyboardInterrupt: Python ends by SIGINT only where the exception
    leaves the program.
    """
    if ending.signal is None:
        raise SystemExit(ending.exit_code)
    sys.excepthook = lambda *_: None  # it has been shown
    raise KeyboardInterrupt


def keep_signal(ending: Ending) -> None:
    """To be called last in what comes after the script: Python still ends by SIGINT where that is how it ended.

    CPython forgets at each `exec` of a text (which every namedtuple is) whether an interrupt left the program: whether
    one left the last such (`run_eval_code_obj` in its pythonrun.c).
    """
    if ending.signal is not None:
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def leave_fork(ending: Ending) -> NoReturn:
    """End a child process that the script forked, without what the parent has to do after its script.

    Python has no other way to do what comes before the end of a process and not return to the caller's frames.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(ending.exit_code)


def _exited(error: SystemExit) -> Ending:
    """As CPython's `_Py_HandleSystemExit`: None is 0, an integer is cut to what a process can return (too large for a C
    long: -1), anything else is printed and is 1."""
    value = error.code
    if value is None:
        return Ending(0)
    if isinstance(value, int):
        return Ending(value & 0xFF if value in _WORD else 0xFF)
    say(value)
    say("\n")
    return Ending(1, _in_one_line(error))


def _in_one_line(error: BaseException) -> str:
    lines = format_exception_only(error)
    return shortened(" ".join((lines[0] if not isinstance(error, SyntaxError) else lines[-1]).split()))

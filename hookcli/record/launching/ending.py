"""Describes how a script ended, and ends the process in the same way."""

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
    """The end of a script: `exit_code` as a shell sees it, and the exception and signal that ended it, if any.

    `error` is the exception in one line; `signal` the one by which `python` would have died. `finish` completes the run
    once the script's threads and exit handlers have ended; a process that exits calls it by itself.
    """

    exit_code: int
    error: str | None = None
    signal: int | None = None
    finish: Callable[[], object] = lambda: None


def ending_of(error: BaseException | None) -> Ending:
    """The ending for an exception that left the script (None: a normal end). Shows it as `python` would."""
    if error is None:
        return Ending(0)
    if isinstance(error, SystemExit):
        return _exited(error)
    raised_by_hook = show(error)
    if isinstance(raised_by_hook, SystemExit):
        return _exited(raised_by_hook)
    line = _in_one_line(error)
    if type(error) is KeyboardInterrupt:  # a subclass ends python with exit code 1
        return Ending(128 + signal.SIGINT, line, signal.SIGINT)
    return Ending(1, line)


def leave(ending: Ending) -> NoReturn:
    """End this process as `python` would after such a script, with its threads, exit handlers and `__del__` first.

    Call it where nothing catches SystemExit or KeyboardInterrupt: Python dies of SIGINT only if the exception leaves
    the program.
    """
    if ending.signal is None:
        raise SystemExit(ending.exit_code)
    sys.excepthook = lambda *_: None  # it has been shown already
    raise KeyboardInterrupt


def keep_signal(ending: Ending) -> None:
    """Make Python die of SIGINT after all, if the script did. Call it last of all that runs after the script.

    CPython remembers an interrupt only until the next `exec` of source text, which every namedtuple uses
    (`run_eval_code_obj` in pythonrun.c).
    """
    if ending.signal is not None:
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def leave_fork(ending: Ending) -> NoReturn:
    """End a child process that the script forked, without the parent's work after its script.

    Python has no public way to run exit handlers and end the process without returning to the caller's frames.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(ending.exit_code)


def _exited(error: SystemExit) -> Ending:
    """The exit code as CPython's `_Py_HandleSystemExit` computes it.

    None is 0; an integer is cut to a byte (-1 if too large for a C long); anything else is printed, and is 1.
    """
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

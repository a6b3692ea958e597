"""Shows the exception that ended a script as `python` would, by the same hook, and without our frames."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from hookcli import errors

_OURS = str(Path(errors.__file__).resolve().parent) + os.sep
_IMPORTING = "<frozen importlib"


def show(error: BaseException) -> BaseException | None:
    """Do what CPython's `PyErr_PrintEx` does at the end of a script. Returns what the script's own excepthook raised.

    Not to be called where an exception is being handled: it would become the context of what the hook raises.
    """
    remove_our_frames(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        say("sys.excepthook is missing\n")
        hook = sys.__excepthook__
    raised = _call(hook, error)
    if raised is not None and not isinstance(raised, SystemExit):
        remove_our_frames(raised)
        say("Error in sys.excepthook:\n")
        _call(sys.__excepthook__, raised)
        say("\nOriginal exception was:\n")
        _call(sys.__excepthook__, error)
    return raised


def say(text: Any) -> None:
    """Write to the script's stderr, which may be closed or gone: Python says nothing then, either."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(str(text))
    except Exception:  # a stream or a __str__ of the script's
        return


def remove_our_frames(error: BaseException) -> None:
    """Take hookcli's frames, and those of its importing, out of an exception's tracebacks: its causes' and groups' too.

    They stand at the top (what runs the script) and may be in the middle (what hooks put around the script's calls).
    """
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        current = todo.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _without_ours(current.__traceback__)
        todo += (current.__cause__, current.__context__)
        if isinstance(current, BaseExceptionGroup):
            todo += current.exceptions


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    kept = list(_theirs(traceback))
    for above, below in pairwise((*kept, None)):
        if above is not None and above.tb_next is not below:
            above.tb_next = below
    return kept[0] if kept else None


def _theirs(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """The entries of the script's own; importlib's are ours where we called it."""
    below_ours = False
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        below_ours = file.startswith(_OURS) or (below_ours and file.startswith(_IMPORTING))
        if not below_ours:
            yield traceback
        traceback = traceback.tb_next


def _call(hook: Any, error: BaseException) -> BaseException | None:
    try:
        hook(type(error), error, error.__traceback__)
    except BaseException as raised:
        return raised
    return None

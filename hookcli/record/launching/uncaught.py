"""Shows the exception that ended a script as `python` would, through `sys.excepthook`, without hookcli's frames."""

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
    """Show an exception as CPython's `PyErr_PrintEx` does. Returns what the script's excepthook raised, or None.

    Must not be called while an exception is being handled: it would become the context of what the hook raises.
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
    """Write to the script's stderr; like Python, silently does nothing if it is closed or missing."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(str(text))
    except Exception:  # from the script's own stream or __str__
        return


def remove_our_frames(error: BaseException) -> None:
    """Remove the frames of hookcli and its imports from the tracebacks of an exception, its causes and groups.

    They are at the top (running the script) and may be in the middle (hooks around the script's calls).
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
    """The script's own entries; importlib's are hookcli's if hookcli called it."""
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

"""Imports and calls what manifests name, and guards against the pieces of other distributions that fail.

Such a piece is left out, and `failures` says so. Errors of hookcli's own pieces pass.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from hookcli.errors import PluginError, UserCode, class_name, in_brief
from hookcli.registry.capability import Capability, capabilities, load_text
from hookcli.system.handlers import raised_by_signal_handler

failures: dict[str, tuple[str, str]] = {}
"""The pieces that were left out, as they are named, until that is said: each with the rest of the line that says so,
and the traceback."""


def passes_guards(error: BaseException) -> bool:
    """True for an error that is not the fault of the piece in which it was raised, so that no guard may hold it back.

    Ctrl-C is one, and so is the error of a signal handler. SystemExit and MemoryError are the piece's.
    """
    return isinstance(error, KeyboardInterrupt) or raised_by_signal_handler(error)


def leave_out(named: str, error: BaseException) -> str:
    """Note in `failures` that the piece of this name is left out, unless it is noted already. Returns why, in brief."""
    why = (isinstance(error, PluginError) and str(error)) or in_brief(error)
    text = "".join(traceback.format_exception(error))  # rather than the error, which keeps tensors alive
    failures.setdefault(named, (f"is left out: {why}", text))
    return why


class Guard:
    """A block that runs a piece, `named` with its distribution: an error in it ends the block alone, and leaves the
    piece out; `why` is then the reason. All errors of hookcli's `own` pieces pass, and those of the classes `passing`.
    """

    def __init__(self, named: str, *, own: bool = False, passing: tuple[type[BaseException], ...] = ()) -> None:
        self.why = ""
        self._named = named
        self._passing = (BaseException,) if own else passing

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or isinstance(error, self._passing) or passes_guards(error):
            return False
        self.why = leave_out(self._named, error)
        return True


def left_out(one: Capability, piece: str) -> Guard:
    """A block that imports or calls this piece of a capability; an error in another distribution's ends it alone."""
    return Guard(f"{one}: {piece}", own=one.distribution == "hookcli")


def blamed(one: Capability | None, piece: str) -> AbstractContextManager[None, bool | None]:
    """A block that calls a piece that the command line asks for: an error in another distribution's names it.

    None stands for the core.
    """
    if one is None or one.distribution == "hookcli":
        return nullcontext()
    return UserCode(lambda error: PluginError(f"{one}: {piece} failed: {in_brief(error)}"))


def pieces(field: str, kind: type | tuple[type, ...] = object) -> list[tuple[Capability, Any]]:
    """The objects that manifests name in this field, each with its capability, but for those that fail to load.

    One of another type than `kind` fails, too.
    """
    loaded: list[tuple[Capability, Any]] = []
    for one in capabilities():
        target = getattr(one, field)
        with left_out(one, f"{field}={target!r}"):
            if target:
                piece = load_text(target)
                if not isinstance(piece, kind):
                    raise TypeError(f"it is {class_name(piece)}")
                loaded.append((one, piece))
    return loaded


def answers(field: str, *arguments: object) -> list[tuple[Capability, Any]]:
    """The results of the functions that manifests name in this field, but for those that fail."""
    results: list[tuple[Capability, Any]] = []
    for one, function in pieces(field):
        with left_out(one, f"{field}={getattr(one, field)!r}"):
            results.append((one, function(*arguments)))
    return results


def texts(values: Iterable[object]) -> list[str]:
    """These texts. Raises TypeError for another value among them."""
    every = list(values)
    if odd := [value for value in every if not isinstance(value, str)]:
        raise TypeError(f"it gave {class_name(odd[0])}, not a text")
    return cast("list[str]", every)

"""Hooks that let their module be copied and pickled: in the copy they do nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

# Its __exit__ takes any arguments and returns None, and unpickling it needs nothing but the standard library.
_NOTHING = nullcontext()


class PicklableHook:
    """A hook on a module of a program that does not know about it.

    PyTorch copies and pickles hooks with their modules. A deep copy, or a module that is saved meanwhile, gets a
    function that does nothing instead, so that loading the file does not need hookcli.
    """

    def __init__(self, hook: Callable[..., object]) -> None:
        self._hook = hook

    def __call__(self, *given: object) -> Any:
        return self._hook(*given)

    def __deepcopy__(self, memo: dict[int, object]) -> Callable[..., None]:
        return _NOTHING.__exit__

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, str]]:
        return getattr, (_NOTHING, "__exit__")

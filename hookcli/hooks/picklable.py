"""Hooks that a module may be copied or saved with: the copy's do nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

# Its __exit__ takes whatever it is given and returns None, and a file that refers to it needs no other library.
_NOTHING = nullcontext()


class Passing:
    """A hook that is on a module for a moment of a program that does not know of it.

    PyTorch copies and pickles hooks with their modules. A deep copy, or a module that was saved meanwhile, has one that
    does nothing in its place, for which nobody who loads the file needs hookcli.
    """

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *given: Any) -> Any:
        return self._hook(*given)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _NOTHING.__exit__

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        return getattr, (_NOTHING, "__exit__")

"""Checks the arguments of functions that users call in their own programs against these functions' annotations."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from torch import nn

from hookcli.errors import UsageError, class_name, shortened, unknown

_KINDS: dict[object, tuple[type | tuple[type, ...], str]] = {
    str: (str, "a text"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: ((bool, Integral), "True or False"),
    Path: (os.PathLike, "a path"),
    nn.Module: (nn.Module, "an nn.Module"),
}


def check_arguments(
    function: Callable[..., object],
    given: Mapping[str, object],
    other: Callable[..., object] | None = None,
    advice: str = "",
) -> None:
    """Raise UsageError for an argument that the function does not take, or whose value is of another kind.

    `other` is the function that takes further ones, and `advice` says when it is called.
    """
    called: Any = vars(function)["__init__"] if isinstance(function, type) else function
    names, hints = [*inspect.signature(function).parameters], get_type_hints(called)
    for name, value in given.items():
        if name not in names:
            if other and name in inspect.signature(other).parameters:
                raise UsageError(f"{name}: {advice}")
            raise UsageError(unknown("argument", name, names))
        kinds = _kinds(hints[name])
        if kinds and not any(_is_one(value, kind) for kind in kinds):
            wanted = " or ".join(_words(kind) for kind in kinds if kind is not NoneType)
            raise UsageError(f"{name}={shortened(repr(value), 60)}: give {wanted}, not {class_name(value)}")


def _kinds(hint: object) -> Sequence[object]:
    """The kinds of values that an annotation allows; none if it is not one of those that can be checked."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    known = all(kind is NoneType or kind in _KINDS or kind == Sequence[str] for kind in kinds)
    return kinds if known else ()


def _is_one(value: object, kind: Any) -> bool:
    if kind == Sequence[str]:
        return isinstance(value, Sequence) and all(isinstance(item, str) for item in value)
    return isinstance(value, NoneType if kind is NoneType else _KINDS[kind][0])


def _words(kind: object) -> str:
    return "a list of texts" if kind == Sequence[str] else _KINDS[kind][1]

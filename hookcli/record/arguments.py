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
from hookcli.registry.capability import RecorderOption, capabilities, recorder_options, require_distinct

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
    hints = arguments(function)
    for name, value in given.items():
        if name not in hints:
            if other and name in arguments(other):
                raise UsageError(f"{name}: {advice}")
            raise UsageError(unknown("argument", name, [*hints]))
        kinds = _kinds(hints[name])
        if kinds and not any(_is_one(value, kind) for kind in kinds):
            wanted = " or ".join(_words(kind) for kind in kinds if kind is not NoneType)
            raise UsageError(f"{name}={shortened(repr(value), 60)}: give {wanted}, not {class_name(value)}")


def arguments(function: Callable[..., object]) -> dict[str, object]:
    """The annotations of a function's arguments, by name; one that takes further ones takes the options of parts."""
    called: Any = vars(function)["__init__"] if isinstance(function, type) else function
    hints, found = get_type_hints(called), dict[str, object]()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            added = ((option.name, one) for one in capabilities() for option in one.options)
            require_distinct("`hookcli.watch`", found, added)
            found |= {name: _kind_of_option(option) for name, option in recorder_options().items()}
        else:
            found[parameter.name] = hints[parameter.name]
    return found


def _kind_of_option(option: RecorderOption) -> object:
    if option.default == ():
        return str | Sequence[str]
    if isinstance(option.default, bool):
        return bool
    return str | Path | None if option.folder else str | None


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

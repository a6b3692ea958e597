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
from hookcli.registry.capability import capabilities, recorder_options, require_distinct

_KINDS: dict[object, tuple[type | tuple[type, ...], str]] = {
    str: (str, "a text"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: ((bool, Integral), "True or False"),
    Path: (os.PathLike, "a path"),
    nn.Module: (nn.Module, "an nn.Module"),
    Sequence[str]: (Sequence, "a list of texts"),
    NoneType: (NoneType, "None"),
}


def check_arguments(
    function: Callable[..., object],
    values: Mapping[str, Any],
    other: Callable[..., object] | None = None,
    advice: str = "",
) -> None:
    """Raise UsageError for an argument that the function does not take, or whose value is of another kind.

    `other` is the function that takes further ones, and `advice` says when it is called.
    """
    hints = arguments(function)
    for name, value in values.items():
        if name not in hints:
            if other and name in arguments(other):
                raise UsageError(f"{name}: {advice}")
            raise UsageError(unknown("argument", name, [*hints]))
        kinds = _kinds(hints[name])
        fitting = [kind for kind in kinds if isinstance(value, _KINDS[kind][0])]
        if fitting == [Sequence[str]] and not all(isinstance(item, str) for item in value):
            fitting = []
        if kinds and not fitting:
            wanted = " or ".join(_KINDS[kind][1] for kind in kinds if kind is not NoneType)
            raise UsageError(f"{name}={shortened(repr(value), 60)}: give {wanted}, not {class_name(value)}")


def arguments(function: Callable[..., object]) -> dict[str, object]:
    """The annotations of a function's arguments, by name; one that takes further ones takes the options of parts."""
    called: Any = vars(function)["__init__"] if isinstance(function, type) else function
    hints, kinds = get_type_hints(called), dict[str, object]()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            added = ((option.name, one) for one in capabilities() for option in one.options)
            require_distinct("`hookcli.watch`", kinds, added)
            for name, option in recorder_options().items():
                if option.default == ():
                    kinds[name] = str | Sequence[str]
                elif isinstance(option.default, bool):
                    kinds[name] = bool
                else:
                    kinds[name] = str | Path | None if option.folder else str | None
        else:
            kinds[parameter.name] = hints[parameter.name]
    return kinds


def _kinds(hint: object) -> Sequence[object]:
    """The kinds of values that an annotation allows; none if it is not one of those that can be checked."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return kinds if all(kind in _KINDS for kind in kinds) else ()

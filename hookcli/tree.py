"""The tensors inside nested values: lists, tuples, named tuples, mappings and dataclasses, whatever their nesting.

`torch.utils._pytree` knows neither plain dataclasses nor paths in PyTorch's spelling, and rebuilds containers even
where nothing changed; hooks must hand back the very object they were given unless a tensor in it was replaced.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

# Deeper than any real output; a bound, because a dataclass may refer back to its owner.
_DEEPEST = 12


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Each tensor with its path, such as `["out"]`, `[0].hidden`, or "" where the value is itself a tensor."""
    if isinstance(value, Tensor):
        yield path, value
    elif depth < _DEEPEST:
        for step, item in _children(value):
            yield from leaves(item, path + step, depth + 1)


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a call received; a lone positional argument has the path "", as a lone output has."""
    if len(args) == 1 and not kwargs:
        yield from leaves(args[0])
    else:
        yield from leaves(args)
        yield from leaves(kwargs)


Change = Callable[[str, Tensor], Tensor]


def replace_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Change
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`replace` for the arguments of a call, with the paths that `arguments` gives."""
    if len(args) == 1 and not kwargs:
        return (replace(args[0], change),), kwargs
    return replace(args, change), replace(kwargs, change)


def replace(value: Any, change: Change, path: str = "", depth: int = 0) -> Any:
    """The value with `change(path, tensor)` in place of each tensor; the same object where no tensor changed."""
    if isinstance(value, Tensor):
        return change(path, value)
    if depth >= _DEEPEST:
        return value
    old = list(_children(value))
    new = [replace(item, change, path + step, depth + 1) for step, item in old]
    if all(a is b for (_, a), b in zip(old, new, strict=True)):
        return value
    return _rebuilt(value, new)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", item
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, item in zip(value._fields, value, strict=True):
            yield f".{name}", item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield f".{field.name}", getattr(value, field.name, None)


def _rebuilt(value: Any, items: list[Any]) -> Any:
    """A container like `value` that holds `items`. Subclasses are copied, not constructed: their arguments are unknown."""
    if isinstance(value, tuple):
        return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    if type(value) is list:
        return items
    twin = copy.copy(value)
    if isinstance(value, list):
        twin[:] = items
    elif isinstance(value, Mapping):
        for key, item in zip(value, items, strict=True):
            twin[key] = item
    else:
        for field, item in zip(fields(value), items, strict=True):
            object.__setattr__(twin, field.name, item)  # works on frozen dataclasses too
    return twin

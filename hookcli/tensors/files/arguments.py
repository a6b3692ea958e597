"""A model's arguments as JSON and tensors, so that another process can call the model with the same ones.

A tensor is `{"tensor": name}`, a tuple `{"tuple": [...]}`, a dict `{"dict": [[key, value], ...]}`; lists, numbers,
texts, booleans and None are themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor


def encoded_call(
    args: Iterable[object], kwargs: Mapping[str, object], target: object, tensors: dict[str, Tensor]
) -> dict[str, object]:
    """A model's arguments, and the target of its loss, as `encoded` has each. Raises Unwritable."""
    return {
        "args": [encoded(value, tensors) for value in args],
        "kwargs": {key: encoded(value, tensors) for key, value in kwargs.items()},
        "target": encoded(target, tensors),
    }


def decoded_call(call: Any, tensors: Mapping[str, Tensor]) -> tuple[tuple[object, ...], dict[str, object], object]:
    """The inverse of `encoded_call`. Raises as `decoded` does."""
    args = tuple(decoded(value, tensors) for value in call["args"])
    kwargs = {key: decoded(value, tensors) for key, value in call.get("kwargs", {}).items()}
    return args, kwargs, decoded(call.get("target"), tensors)


class Unwritable(Exception):  # noqa: N818 - not an error: the arguments are left out
    """An argument that is neither a tensor nor plain."""


def encoded(value: object, tensors: dict[str, Tensor]) -> object:
    """The value as JSON; its tensors are added to `tensors` under new names. Raises Unwritable for other objects."""
    if isinstance(value, Tensor):
        earlier = next((name for name, tensor in tensors.items() if tensor is value), None)
        name = earlier or f"input{len(tensors)}"
        tensors[name] = value
        return {"tensor": name}
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is list:
        return [encoded(item, tensors) for item in value]
    if type(value) is tuple:
        return {"tuple": [encoded(item, tensors) for item in value]}
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, encoded(item, tensors)] for key, item in value.items()]}
    raise Unwritable(type(value).__name__)


def decoded(value: object, tensors: Mapping[str, Tensor]) -> object:
    """The inverse of `encoded`. Raises ValueError, KeyError or TypeError for what `encoded` does not return."""
    if isinstance(value, list):
        return [decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(decoded(item, tensors) for item in content)
    if kind == "dict":
        return {key: decoded(item, tensors) for key, item in content}
    raise ValueError(f"inputs: unknown kind {kind!r}")

"""Reads the tensors of a dump, one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from torch import Tensor

from hookcli.errors import UsageError
from hookcli.system.files import regular
from hookcli.table.dump import INPUTS, Dump, read_dump
from hookcli.table.row import Row


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
        name = next((name for name, tensor in tensors.items() if tensor is value), f"input{len(tensors)}")
        tensors[name] = value
        return {"tensor": name}
    if type(value) in (NoneType, bool, int, str) or (type(value) is float and math.isfinite(value)):
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


class DumpReader:
    """A dump and its tensors, by the index in its folder or by another. Raises UsageError where one can't be read."""

    def __init__(self, folder: str, dump: Dump | None = None) -> None:
        self.folder = folder
        self.dump: Dump = dump or read_dump(folder)

    def load(self, row: Row) -> Tensor:
        """The tensor of a row that has a file. Raises UsageError if it is not there, or has another shape."""
        file, name = row["file"], row["name"]
        tensor: Tensor = self._opened(file, lambda opened: opened.get_tensor(name))
        if row["shape"] is not None and list(tensor.shape) != row["shape"]:
            raise UsageError(
                f"{Path(self.folder) / file}: {name} has the shape {list(tensor.shape)}, not {row['shape']}"
            )
        return tensor

    def arguments(self, batch: int) -> tuple[tuple[object, ...], dict[str, object], object]:
        """The arguments of the model's run on a batch, and the loss's target. Raises UsageError if they are damaged."""
        # Copies lie in memory as PyTorch aligns it; kernels may round otherwise elsewhere.
        tensors = self._opened(
            INPUTS.format(batch),
            lambda file: {name: file.get_tensor(name).clone() for name in file.keys()},  # noqa: SIM118
        )
        try:
            return decoded_call(self.dump.inputs[batch], tensors)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UsageError(
                f"{self.folder}: damaged: the inputs of batch {batch + 1} can't be read ({error})"
            ) from error

    def _opened(self, file: str, read: Callable[[Any], object]) -> Any:
        """The result of `read` on an open file. Raises UsageError."""
        path = Path(self.folder) / file
        try:
            from safetensors import safe_open

            with safe_open(regular(path, self.folder), framework="pt") as opened:
                return read(opened)
        except ImportError as error:
            raise UsageError("dumps: reading them needs safetensors: pip install 'hookcli[safetensors]'") from error
        except Exception as error:  # safetensors raises its own classes
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UsageError(f"{path}: can't be read as a dump's tensors ({why})") from error

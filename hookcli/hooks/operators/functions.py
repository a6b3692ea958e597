"""PyTorch's functions: their names, and whether a call of one made or changed a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.hooks.tensor_origins import version_of
from hookcli.hooks.torch_private.overrides import OPERATORS, OpOverload
from hookcli.tensors import tree

_TENSOR_ATTRIBUTES = tuple(getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "data", "real", "imag"))


def reads_attribute(function: object) -> bool:
    """True for the function that reads an attribute of a tensor, but for attributes that are views, such as `T`."""
    return getattr(function, "__name__", "") == "__get__" and function not in _TENSOR_ATTRIBUTES


def writes(function: object) -> bool:
    """True for ATen's operators that change an argument: PyTorch counts the change only after a dispatch mode."""
    return isinstance(function, OpOverload) and (
        function.overloadpacket.__name__.endswith("_") or str(function).endswith(".out")
    )


def given_tensors(args: Sequence[object], kwargs: Mapping[str, object]) -> list[Tensor]:
    """The tensors among a function's arguments, and in the lists and mappings there."""
    tensors: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple, dict)):
            tensors += (x for _, x in tree.leaves(value))
    return tensors


class ArgumentTensors:
    """The tensors that a call received, with the versions that they had before it. It lives as long as the call."""

    __slots__ = ("tensors", "versions")

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        with torch.DisableTorchFunction():  # neither the program's modes nor its subclasses see what is read here
            self.versions = [version_of(x) for x in tensors]

    def written(self) -> list[Tensor]:
        """The tensors that the call has changed in place."""
        with torch.DisableTorchFunction():
            return [x for x, before in zip(self.tensors, self.versions, strict=True) if version_of(x) != before]

    def makes(self, output: object) -> bool:
        """True for a call that made a tensor or changed one; `contiguous()` may hand on what it received."""
        with torch.DisableTorchFunction():
            for x in (output,) if isinstance(output, Tensor) else (x for _, x in tree.leaves(output)):
                if x.is_inference() or not any(x is given for given in self.tensors):
                    return True
        return bool(self.written())


def function_names(what: Any) -> tuple[str, str]:
    """The short name of a function, and PyTorch's full name of it: `add` and `torch.Tensor.__add__`."""
    if isinstance(what, OPERATORS):  # aten.add.Tensor, or torchvision.nms
        return str(what).split(".")[1], f"torch.ops.{what}"
    if isinstance(what, type):  # an autograd.Function
        return what.__name__, f"{what.__module__}.{what.__qualname__}"
    if not isinstance(what, (FunctionType, BuiltinFunctionType)) and isinstance(getattr(what, "name", None), str):
        return what.name, f"TorchScript {what.name}"
    name = getattr(what, "__name__", type(what).__name__)
    full = str(torch.overrides.resolve_name(what) or name).removesuffix(".__get__")
    if full.rpartition(".")[2] != name and getattr(torch, name, None) == what:  # one function of two names: mm and spmm
        full = f"torch.{name}"
    return _plain_name(full.rpartition(".")[2]), full


def type_of(part: object) -> str:
    """The type of a part of a model: the name of a module's class, or an operator's short name."""
    return tree.type_text(part) if isinstance(part, nn.Module) else function_names(part)[0]


def _plain_name(name: str) -> str:
    """Name the function that an operator of Python calls: `add` for `__radd__`, `add_` for `__iadd__`."""
    if not (name.startswith("__") and name.endswith("__")):
        return name
    inner = name.strip("_")
    for first, ending in (("r", ""), ("i", "_")):
        if inner.startswith(first) and hasattr(Tensor, f"__{inner[1:]}__"):
            return _SAME.get(inner[1:], inner[1:]) + ending
    return _SAME.get(inner, inner)


_SAME = {"truediv": "div", "floordiv": "floor_divide"}

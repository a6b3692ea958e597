"""The calls of PyTorch's functions in a program, recorded with the shapes of their arguments.

A function mode sees them (see observing_mode.py). A dispatch mode would not do: operators that notice one take other
paths, and it counts some operators by running their parts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hookcli.hooks.observing_mode import ObservingMode
from hookcli.hooks.torch_private.exchange import Function
from hookcli.hooks.torch_private.overrides import OPERATORS, in_func, stored_values, times_mapped
from hookcli.tensors import tree
from hookcli.tensors.tree import Args, Kwargs

_PLAIN = (bool, int, float, complex, str, bytes, range, Enum, torch.dtype, torch.device, torch.layout)
_CONSTANTS = (torch.memory_format, type(None), type(Ellipsis))


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a tensor. `density`: the share of its elements that a sparse tensor stores.

    `nested`: of a nested tensor, the shape of all its rows together.
    """

    sizes: tuple[int, ...]
    dtype: torch.dtype
    density: float = 1.0
    nested: bool = False


@dataclass(frozen=True, slots=True)
class OpaqueArgument:
    """An argument without a plain value, such as a function or the packed weights of a quantized layer."""

    type: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list, tuple or mapping of arguments."""

    kind: type
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """A call: the function, its arguments, an operator's output, and over how many items `torch.vmap` mapped it."""

    function: Any
    args: Items | OpaqueArgument
    kwargs: Items | OpaqueArgument
    output: object
    times: int


class FunctionCalls(ObservingMode):
    """Records the calls of functions for which `matters` is true. `log`: their numbers in `signatures`, in order."""

    def __init__(self, matters: Callable[[object], bool]) -> None:
        super().__init__()
        self.log = array("L")
        self.signatures: dict[Signature, int] = {}
        self._matters = cache(matters)

    def observe(self, func: Any, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Record TorchScript functions in any case: their parts have unknown costs."""
        if func is not run:
            named = func if isinstance(func, torch.jit.ScriptFunction) else OpaqueArgument(f"TorchScript {func.name}")
            return self.remember(named, run, args, kwargs)
        return self.remember(func, run, args, kwargs) if self._matters(func) else run(*args, **kwargs)

    def remember(self, func: object, run: Function, args: Args, kwargs: Kwargs) -> object:
        given = signature_of(func, args, kwargs)  # before the function changes its arguments
        output = run(*args, **kwargs)
        if isinstance(func, OPERATORS):
            given = replace(given, output=_frozen_or_opaque(output))
        self.log.append(self.signatures.setdefault(given, len(self.signatures)))
        return output


def signature_of(func: object, args: object, kwargs: object, output: object = None) -> Signature:
    """Return the call, with its `output` for formulas of operators, which may use it.

    Never raises: the program must continue, whatever the arguments are.
    """
    try:
        times = times_mapped(x for _, x in tree.leaves((args, kwargs))) if in_func() else 1
    except Exception:
        times = 1
    return Signature(func, _frozen_or_opaque(args), _frozen_or_opaque(kwargs), _frozen_or_opaque(output), times)


def _frozen_or_opaque(value: object) -> Any:
    try:
        hash(found := frozen(value))
    except Exception:  # symbolic sizes, or a tensor that has none
        return OpaqueArgument(type(value).__name__)
    return found


def frozen(value: object) -> object:
    """Return an argument as a hashable value without tensors."""
    if isinstance(value, Tensor):
        return _shape(value)
    if isinstance(value, (list, tuple)):
        return Items(list if isinstance(value, list) else tuple, tuple(map(frozen, value)))
    if isinstance(value, dict):
        return Items(dict, tuple((key, frozen(item)) for key, item in value.items()))
    return value if isinstance(value, (*_PLAIN, *_CONSTANTS)) else OpaqueArgument(type(value).__name__)


def _shape(x: Tensor) -> Shape:
    if x.is_nested:
        values = x.values()
        last = x.size(-1) if x.dim() > 1 and isinstance(x.size(-1), int) else 1
        return Shape((values.numel() // max(1, last), last), x.dtype, nested=True)
    sizes = tuple(x.shape)
    if x.layout is torch.strided or x.device.type == "meta" or not x.numel():
        return Shape(sizes, x.dtype)
    stored = stored_values(x) if x.layout is torch.sparse_coo else x.values()
    return Shape(sizes, x.dtype, stored.numel() / x.numel())

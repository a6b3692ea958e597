"""The calls of PyTorch's functions in a program, recorded with the shapes of their arguments.

PyTorch passes every function, with its arguments, to a mode of `torch.overrides` before any operator runs. The mode
calls the function unchanged, so the operators and values are those of a run without it. (A dispatch mode would not do:
operators that notice one take other paths, and it counts some operators by running their parts.) Calls from compiled
code are not seen; a call of a TorchScript function is seen from outside.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hookcli.hooks.torch_private.dynamo import optimized_module
from hookcli.hooks.torch_private.overrides import (
    OPERATORS,
    exchanged_for_counting,
    in_func,
    innermost_function_mode,
    stored_values,
    times_mapped,
    without_innermost_function_mode,
)
from hookcli.tensors import tree

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
    output: Any
    times: int


class FunctionCalls(TorchFunctionMode):
    """Records the calls of functions for which `matters` is true. `log`: their numbers in `signatures`, in order."""

    def __init__(self, matters: Callable[[Any], bool]) -> None:
        super().__init__()
        self.past_compiled = False
        """Call compiled modules without this mode, since PyTorch would compile them again for it."""
        self.log = array("L")
        self.signatures: dict[Signature, int] = {}
        self._matters = matters
        self._known: dict[Hashable, bool] = {}
        self._stack = ExitStack()

    def __enter__(self) -> FunctionCalls:
        compiled = optimized_module() if self.past_compiled else None
        self._stack.enter_context(exchanged_for_counting(_without_mode, _recorded, compiled))
        mode: Any = super()  # untyped
        mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        mode: Any = super()
        mode.__exit__(*error)
        self._stack.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        matters = self._known.get(func)
        if matters is None:
            matters = self._known[func] = self._matters(func)
        return self.remember(func, func, args, kwargs) if matters else func(*args, **kwargs)

    def remember(self, func: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the function, and record the call."""
        given = _given(func, args, kwargs)  # before the function changes its arguments
        output = run(*args, **kwargs)
        if isinstance(func, OPERATORS):  # formulas for operators may use the output
            given = replace(given, output=_frozen_or_opaque(output))
        self.log.append(self.signatures.setdefault(given, len(self.signatures)))
        return output


def _given(func: Any, args: Any, kwargs: Any) -> Signature:
    """Return the call without its output. Never raises: the program must continue, whatever the arguments are."""
    try:
        times = times_mapped(x for _, x in tree.leaves((args, kwargs))) if in_func() else 1
    except Exception:
        times = 1
    return Signature(func, _frozen_or_opaque(args), _frozen_or_opaque(kwargs), None, times)


def _frozen_or_opaque(value: Any) -> Any:
    try:
        hash(found := frozen(value))
    except Exception:  # symbolic sizes, or a tensor that has none
        return OpaqueArgument(type(value).__name__)
    return found


def frozen(value: Any) -> Any:
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


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the call of a TorchScript function or method, which PyTorch passes to no mode."""

    def call(script: Any, *args: Any, **kwargs: Any) -> Any:
        calls = None if torch.compiler.is_compiling() else _innermost()
        if calls is None:
            return original(script, *args, **kwargs)
        known = script if isinstance(script, torch.jit.ScriptFunction) else OpaqueArgument(f"TorchScript {script.name}")
        return calls.remember(known, partial(original, script), args, kwargs)

    return call


def _without_mode(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function to run it without our mode."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _innermost() is None:
            return original(*args, **kwargs)
        with without_innermost_function_mode():
            return original(*args, **kwargs)

    return call


def _innermost() -> FunctionCalls | None:
    """Return our mode, if it is the innermost one."""
    mode = innermost_function_mode()
    return mode if isinstance(mode, FunctionCalls) else None

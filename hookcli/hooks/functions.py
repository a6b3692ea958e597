"""The calls that a program makes of PyTorch's functions, remembered by their shapes alone.

A mode of `torch.overrides` is handed each function with its arguments before any operator runs, and runs it as it is:
the operators, and so the values, are those of a run without it. (A dispatch mode would not do: operators ask whether
one is active and take other ways then, and it counts some by running what they are made of.) A call made by compiled
code is not seen; one of TorchScript is seen from outside.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

from hookcli.hooks.calls import in_func
from hookcli.hooks.program.global_hooks import replaced

_PLAIN = (bool, int, float, complex, str, bytes, range, Enum, torch.dtype, torch.device, torch.layout)
_CONSTANTS = (torch.memory_format, type(None), type(Ellipsis))


@dataclass(frozen=True, slots=True)
class Shape:
    """What is remembered of a tensor. `density` is the share of a sparse one's elements that it stores.

    A nested one is remembered as the rows that it holds (`nested`).
    """

    sizes: tuple[int, ...]
    dtype: torch.dtype
    density: float = 1.0
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Opaque:
    """An argument that has no plain value, such as a function or the packed weights of a quantized layer."""

    type: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list, tuple or mapping of arguments."""

    kind: type
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """A call: the function, its arguments, what an operator of a library returned, and over how many it was mapped."""

    function: Any
    args: Items | Opaque
    kwargs: Items | Opaque
    output: Any
    times: int


class FunctionCalls(TorchFunctionMode):
    """Remembers the calls for which `matters(function)`; `log` has their numbers in `signatures`, in order."""

    def __init__(self, matters: Callable[[Any], bool]) -> None:
        super().__init__()
        self.past_compiled = False
        """Whether compiled modules are called without this mode: they would be compiled again for it."""
        self.log = array("L")
        self.signatures: dict[Signature, int] = {}
        self._matters = matters
        self._known: dict[Hashable, bool] = {}
        self._stack = ExitStack()

    def __enter__(self) -> FunctionCalls:
        self._stack.enter_context(replaced(torch.overrides, "has_torch_function", _transparent))
        for script in (torch.jit.ScriptFunction, torch._C.ScriptMethod):
            self._stack.enter_context(replaced(script, "__call__", _told))
        dynamo = sys.modules.get("torch._dynamo.eval_frame") if self.past_compiled else None
        if dynamo is not None:  # else nothing is compiled
            self._stack.enter_context(replaced(dynamo.OptimizedModule, "__call__", _unseen))
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
        """Run it, and remember that it was."""
        given = _given(func, args, kwargs)  # before it changes them
        output = run(*args, **kwargs)
        if isinstance(func, torch._ops.OperatorBase | torch._ops.OpOverloadPacket):  # whose formulas may ask for it
            given = replace(given, output=_frozen_or_opaque(output))
        self.log.append(self.signatures.setdefault(given, len(self.signatures)))
        return output


def _given(func: Any, args: Any, kwargs: Any) -> Signature:
    """The call without its output. Whatever its arguments are, the program must go on."""
    try:
        times = _times((args, kwargs))
    except Exception:
        times = 1
    return Signature(func, _frozen_or_opaque(args), _frozen_or_opaque(kwargs), None, times)


def _frozen_or_opaque(value: Any) -> Any:
    try:
        hash(found := frozen(value))
    except Exception:  # sizes that are symbols, a tensor that tells nothing
        return Opaque(type(value).__name__)
    return found


def frozen(value: Any) -> Any:
    """An argument as a hashable value without tensors."""
    if isinstance(value, Tensor):
        return _shape(value)
    if isinstance(value, (list, tuple)):
        return Items(list if isinstance(value, list) else tuple, tuple(map(frozen, value)))
    if isinstance(value, dict):
        return Items(dict, tuple((key, frozen(item)) for key, item in value.items()))
    return value if isinstance(value, (*_PLAIN, *_CONSTANTS)) else Opaque(type(value).__name__)


def _shape(x: Tensor) -> Shape:
    if x.is_nested:
        values = x.values()
        last = x.size(-1) if x.dim() > 1 and isinstance(x.size(-1), int) else 1
        return Shape((values.numel() // max(1, last), last), x.dtype, nested=True)
    sizes = tuple(x.shape)
    if x.layout is torch.strided or x.device.type == "meta" or not x.numel():
        return Shape(sizes, x.dtype)
    stored = x._values() if x.layout is torch.sparse_coo else x.values()
    return Shape(sizes, x.dtype, stored.numel() / x.numel())


def _times(args: Any) -> int:
    """Over how many items `torch.vmap` maps the call."""
    if not in_func():
        return 1
    functorch: Any = torch._C._functorch
    sizes: dict[int, int] = {}
    for x in torch.utils._pytree.tree_leaves(args):
        while isinstance(x, Tensor) and functorch.is_functorch_wrapped_tensor(x):
            inner = functorch.get_unwrapped(x)
            if functorch.is_batchedtensor(x):
                sizes[functorch.maybe_get_level(x)] = inner.shape[functorch.maybe_get_bdim(x)]
            x = inner
    product = 1
    for size in sizes.values():
        product *= size
    return product


def _transparent(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """`torch.overrides.has_torch_function`, which attention asks before it takes its fused path, blind to our mode."""

    def has_torch_function(relevant_args: Any) -> bool:
        if torch.compiler.is_compiling() or _innermost() is None:
            return original(relevant_args)
        with _pop_mode_temporarily():
            return original(relevant_args)

    return has_torch_function


def _told(original: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a TorchScript function or method, which no mode is told of."""

    def call(script: Any, *args: Any, **kwargs: Any) -> Any:
        calls = None if torch.compiler.is_compiling() else _innermost()
        if calls is None:
            return original(script, *args, **kwargs)
        known = script if isinstance(script, torch.jit.ScriptFunction) else Opaque(f"TorchScript {script.name}")
        return calls.remember(known, partial(original, script), args, kwargs)

    return call


def _unseen(original: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a compiled module, without our mode."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _innermost() is None:
            return original(*args, **kwargs)
        with _pop_mode_temporarily():
            return original(*args, **kwargs)

    return call


def _innermost() -> FunctionCalls | None:
    """Our mode, where it is the next one to be asked."""
    depth = torch._C._len_torch_function_stack()
    mode = torch._C._get_function_stack_at(depth - 1) if depth else None
    return mode if isinstance(mode, FunctionCalls) else None

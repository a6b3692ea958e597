"""A mode that sees every call of PyTorch's functions, and changes none.

PyTorch passes every function, with its arguments, to a mode of `torch.overrides` before any operator runs. The mode
calls the function unchanged, so operators and values are the same as in a run without it; while a function runs, calls
inside it are not seen. Calls from compiled code are not seen; a call of a TorchScript function is seen from outside.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookcli.hooks.torch_private.dynamo import optimized_module, replaced_in_place
from hookcli.hooks.torch_private.exchange import Function
from hookcli.hooks.torch_private.overrides import (
    OPERATORS,
    exchanged_for_counting,
    in_func,
    innermost_function_mode,
    leave_function_mode,
    stored_values,
    times_mapped,
    without_innermost_function_mode,
)
from hookcli.tensors import tree
from hookcli.tensors.tree import Args, Kwargs


class ObservingMode(TorchFunctionMode):
    """The base class of modes that observe.

    `as_called`: see the functions that attention consists of, and each `autograd.Function` as a whole. `in_loss`: go on
    after a forward, in the loss function, where a session watches that.
    """

    as_called = False
    in_loss = False

    def __init__(self) -> None:
        super().__init__()
        self.past_compiled: nn.Module | None = None
        """Call compiled modules, also the parts of this one that are compiled in place, without this mode: PyTorch
        would compile them again for it.
        """
        self._stack = ExitStack()

    @abstractmethod
    def observe(self, func: object, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Return `run(*args, **kwargs)`. `run` is `func`, but for a TorchScript function or method."""

    def __enter__(self) -> ObservingMode:
        compiled = optimized_module() if self.past_compiled is not None else None
        self._stack.enter_context(exchanged_for_counting(_without_modes, _observed, compiled, self.as_called))
        TorchFunctionMode.__enter__(self)
        if self.past_compiled is not None:
            self._stack.enter_context(replaced_in_place(self.past_compiled, without_mode))
        return self

    def __exit__(self, *error: object) -> None:
        leave_function_mode(self)
        self._stack.close()

    def __torch_function__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        return self.observe(func, func, args, kwargs)


def _observed(original: Function) -> Function:
    """Wrap a call that goes to no mode: of TorchScript, an `autograd.Function`, or the operator of `flex_attention`."""

    def call(script: object, *args: object, **kwargs: object) -> object:
        mode = None if torch.compiler.is_compiling() else _innermost()
        applied = isinstance(script, type)
        checkpoint = applied and script.__module__.startswith("torch.")  # and PyTorch's other functions
        if mode is None or checkpoint or (not mode.as_called and (applied or isinstance(script, OPERATORS))):
            return original(script, *args, **kwargs)
        run = original if applied else without_mode(original)
        return mode.observe(script, partial(run, script), args, kwargs)

    return call


def without_mode(original: Function) -> Function:
    """Wrap a function to run it without our mode; two modes of ours wrap it twice."""

    def call(*args: object, **kwargs: object) -> object:
        if torch.compiler.is_compiling() or _innermost() is None:
            return original(*args, **kwargs)
        with without_innermost_function_mode():
            return original(*args, **kwargs)

    return call


def _without_modes(original: Function) -> Function:
    """Wrap a function to run it without any of our innermost modes, of which only one may have asked for it."""

    def call(*args: object, **kwargs: object) -> object:
        number = 0
        while not torch.compiler.is_compiling() and isinstance(innermost_function_mode(number), ObservingMode):
            number += 1
        with ExitStack() as stack:
            for _ in range(number):
                stack.enter_context(without_innermost_function_mode())
            return original(*args, **kwargs)

    return call


def _innermost() -> ObservingMode | None:
    """Return our mode, if it is the innermost one."""
    mode = innermost_function_mode()
    return mode if isinstance(mode, ObservingMode) else None


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
        signature = signature_of(func, args, kwargs)  # before the function changes its arguments
        output = run(*args, **kwargs)
        if isinstance(func, OPERATORS):
            signature = replace(signature, output=_frozen_or_opaque(output))
        self.log.append(self.signatures.setdefault(signature, len(self.signatures)))
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
        hash(plain := frozen(value))
    except Exception:  # symbolic sizes, or a tensor that has none
        return OpaqueArgument(type(value).__name__)
    return plain


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
    return Shape(sizes, x.dtype, stored_values(x).numel() / x.numel())

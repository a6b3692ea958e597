"""A mode that sees every call of PyTorch's functions, and changes none.

PyTorch passes every function, with its arguments, to a mode of `torch.overrides` before any operator runs. The mode
calls the function unchanged, so the operators and values are those of a run without it; while a function runs, calls
inside it are not seen. Calls from compiled code are not seen; a call of a TorchScript function is seen from outside.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from functools import partial

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from hookcli.hooks.torch_private.dynamo import optimized_module, replaced_in_place
from hookcli.hooks.torch_private.exchange import Function
from hookcli.hooks.torch_private.overrides import (
    exchanged_for_counting,
    innermost_function_mode,
    leave_function_mode,
    without_innermost_function_mode,
)
from hookcli.tensors.tree import Args, Kwargs


class ObservingMode(TorchFunctionMode):
    """The base class of modes that observe.

    `as_called`: see the functions that attention consists of, and each `autograd.Function` as a whole.
    """

    as_called = False

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
    """Wrap the call of a TorchScript function or method, or of an `autograd.Function`, which go to no mode."""

    def call(script: object, *args: object, **kwargs: object) -> object:
        mode = None if torch.compiler.is_compiling() else _innermost()
        applied = isinstance(script, type)
        if mode is None or (applied and (script.__module__.startswith("torch.") or not mode.as_called)):
            return original(script, *args, **kwargs)  # PyTorch's own checkpoints are also an `autograd.Function`
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

"""PyTorch's global hooks, for a program that is looked at as it runs.

A global pre-hook finds the outermost module of each call, whose end a hook on that module alone tells; global hooks on
optimizers see each step. There is no hook for the begin of a backward pass, for the scaling of a loss, for an optimizer
that gets its parameters and for a module that is compiled in place: these functions of PyTorch's are wrapped meanwhile.

Code that `torch.compile` traces goes past all of it. A forked process has none of it, but tells its parent if
it trains.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Self
from weakref import ref

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hookcli.hooks.calls import in_backward
from hookcli.hooks.program.children import ChildProcesses
from hookcli.hooks.program.finalizer import KwargsWithToken, Token, raise_dropped, when_gone
from hookcli.hooks.program.listener import Listener
from hookcli.hooks.program.outermost import OutermostCalls


class GlobalHooks:
    """On for the time of a `with` block, in all threads of this process but not in its children."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.children = ChildProcesses()
        self._calls = OutermostCalls(listener)
        self._ends: dict[int, ref[Token]] = {}  # by optimizer, while it steps
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        on = self._stack.enter_context
        mine = on(torch_module.register_module_forward_pre_hook(self._calls.entering()))
        on(register_optimizer_step_pre_hook(self._step_begins))
        on(register_optimizer_step_post_hook(self._step_over))
        on(replaced(torch.autograd, "backward", self._backward))
        on(replaced(Optimizer, "add_param_group", self._made))
        on(replaced(nn.Module, "compile", self._compiled))
        on(replaced(BaseProcess, "start", self.children.counting))
        on(replaced(torch.amp.GradScaler, "scale", self._scaled))
        on(replaced(torch.amp.GradScaler, "step", self._scaler_step))
        on(replaced(torch_module, "_has_any_global_hook", lambda original: lambda: _others_than(mine.id)))
        _on_now.add(self)
        return self

    def __exit__(self, *error: object) -> None:
        _on_now.discard(self)
        self._calls.close()
        self._ends.clear()
        self._stack.close()

    # Optimizers.

    def _step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling() or _extended(optimizer, sys._getframe(1)):
            return None
        self._calls.drop_interrupted()
        self._calls.clean_up()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        raise_dropped()
        ended = self.listener.step_begins(optimizer, closure is not None)
        if ended is None:
            return None
        token = Token()
        self._ends[id(optimizer)] = when_gone(token, ended)
        return args, KwargsWithToken(kwargs, token)

    def _step_over(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (torch.compiler.is_compiling() or _extended(optimizer, sys._getframe(1))):
            self.listener.step_over(optimizer)
            self._ends.pop(id(optimizer), None)

    # What there is no hook for.

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or in_backward():  # the older checkpoint's own pass
                return original(tensors, grad_tensors, *args, **kwargs)
            self._calls.drop_interrupted()
            raise_dropped()
            self.listener.backward_begins(tensors, grad_tensors, kwargs.get("inputs", args[3] if args[3:] else None))
            try:
                return original(tensors, grad_tensors, *args, **kwargs)
            finally:
                self.listener.backward_over()

        return backward

    def _made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_param_group(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.listener.made(optimizer)

        return add_param_group

    def _compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_in_place(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self.listener.compiled(module)

        return compile_in_place

    def _scaled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if scaler.is_enabled():
                self.listener.scaled(scaler, outputs, scaled)
            return scaled

        return scale

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, optimizer, *args, **kwargs)
            if scaler.is_enabled():
                self.listener.scaler_stepped(optimizer)
            return result

        return step


def _extended(optimizer: Optimizer, step: FrameType) -> bool:
    """Whether this is a step inside another of the same optimizer: a subclass calls the step that it extends.

    `step` is the frame of PyTorch's that calls the hooks of a step. Nothing is kept that would tell as much, since
    nothing would tell of a step that an exception ends.
    """
    frame = step.f_back
    while frame is not None:
        if frame.f_code is step.f_code and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False


@contextmanager
def replaced(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Exchange a function for what `wrapper` makes of it, while the block runs."""
    original = getattr(owner, name)
    ours = wraps(original)(wrapper(original))
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if getattr(owner, name) is ours:  # what someone else has wrapped since stays
            setattr(owner, name, original)


def _others_than(ours: int) -> bool:
    """Whether someone else has put global hooks on: `torch.compile` warns of any."""
    tables = (
        torch_module._global_backward_pre_hooks,
        torch_module._global_backward_hooks,
        torch_module._global_forward_hooks,
    )
    return any(tables) or any(number != ours for number in torch_module._global_forward_pre_hooks)


_on_now: set[GlobalHooks] = set()


def _off_in_child() -> None:
    for hooks in list(_on_now):
        hooks.__exit__()
        hooks.listener.forked()
        hooks.children.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_off_in_child)

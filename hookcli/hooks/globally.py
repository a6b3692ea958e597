"""PyTorch's global hooks, for a program that is looked at as it runs.

A global pre-hook finds the outermost module of each call, whose end a hook on that module alone tells; global hooks on
optimizers see each step. There is no hook for the begin of a backward pass, for the scaling of a loss, for an optimizer
that gets its parameters and for a module that is compiled in place: these functions of PyTorch's are wrapped meanwhile.

Code that `torch.compile` traces goes past all of it. A forked process has none of it.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from types import FrameType
from typing import Any, Protocol, Self

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from hookcli.hooks.passing import Passing
from hookcli.hooks.sites import in_backward


class Watcher(Protocol):
    """What is told. None of it may raise."""

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module is called that no other module calls."""

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Its call is over."""

    def failed(self, thread: int) -> None:
        """The last call in this thread has ended by an exception, which the program has caught and let go of.

        Not where the next call comes first, nor of an interrupt.
        """

    def backward_begins(self, tensors: Any) -> None:
        """`backward()` of these tensors."""

    def backward_over(self) -> None:
        """That pass is over, or failed."""

    def scaled(self, scaler: Any, losses: Any, made: Any) -> None:
        """Of these losses a GradScaler `made` others."""

    def scaler_stepped(self, optimizer: Optimizer) -> None:
        """A GradScaler has let an optimizer step, or has left the step out."""

    def made(self, optimizer: Optimizer) -> None:
        """An optimizer gets parameters: its first ones, or others."""

    def step_begins(self, optimizer: Optimizer, closure: bool) -> Callable[[], object] | None:
        """An optimizer's step; with a closure, the forward and backward passes are inside it.

        What is returned is called after `step_over`, or instead of it when the exception that ended the step is gone.
        """

    def step_over(self, optimizer: Optimizer) -> None:
        """That step is over."""

    def compiled(self, module: nn.Module) -> None:
        """`module.compile()`: no hook sees its calls any more."""

    def forked(self) -> None:
        """This is a child process now, in which nothing is told any more."""


@dataclass(slots=True)
class _Running:
    """The outermost call that is under way in a thread; `depth` counts calls of the module inside it."""

    module: nn.Module | None
    frame: FrameType | None
    error: BaseException | None
    handle: RemovableHandle | None = None
    depth: int = 0

    def over(self) -> None:
        """Keep nothing of the program's alive: where an exception passes, the hook at the end stays for a while."""
        self.module = self.frame = self.error = None

    def still(self) -> bool:
        """Whether its frame is on the stack: an interrupt, of which no hook is told, may have ended it."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None


class _Local(threading.local):
    call: _Running | None = None


class _Afterwards:
    """Does something when it is let go of. PyTorch keeps what hooks return in the frame of the call or the step; of one
    that failed that lives as long as the exception does."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do

    def __del__(self) -> None:
        self._do()


class _Holding(dict[str, Any]):
    """Keyword arguments, and something that lives as long as they do."""

    def __init__(self, kwargs: dict[str, Any], afterwards: _Afterwards) -> None:
        super().__init__(kwargs)
        self.afterwards = afterwards


class GlobalHooks:
    """On for the time of a `with` block, in all threads of this process but not in its children."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self._local = _Local()
        self._stack = ExitStack()
        self._later: dict[int, RemovableHandle] = {}  # by thread

    def __enter__(self) -> Self:
        on = self._stack.enter_context
        mine = on(torch_module.register_module_forward_pre_hook(self._entering()))
        on(register_optimizer_step_pre_hook(self._step_begins))
        on(register_optimizer_step_post_hook(self._step_over))
        on(_replaced(torch.autograd, "backward", self._backward))
        on(_replaced(Optimizer, "add_param_group", self._made))
        on(_replaced(nn.Module, "compile", self._compiled))
        on(_replaced(torch.amp.GradScaler, "scale", self._scaled))
        on(_replaced(torch.amp.GradScaler, "step", self._scaler_step))
        on(_replaced(torch_module, "_has_any_global_hook", lambda original: lambda: _others_than(mine.id)))
        _on_now.add(self)
        return self

    def __exit__(self, *error: object) -> None:
        _on_now.discard(self)
        for handle in self._later.values():
            handle.remove()
        self._later.clear()
        self._stack.close()

    def _clean_up(self) -> None:
        """Take off what could not be taken off while an exception passed through it."""
        if self._later and (handle := self._later.pop(threading.get_ident(), None)) is not None:
            handle.remove()

    # Modules.

    def _entering(self) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        local, watcher = self._local, self.watcher
        is_compiling = torch.compiler.is_compiling

        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            if is_compiling():
                return
            call = local.call
            if call is not None and ((call.module is not module and _by_module()) or self._inside(call, module)):
                return
            if in_backward() or torch._C._is_tracing():  # a recomputation; not a run
                return
            self._clean_up()
            watcher.enter(module, args)
            if isinstance(module, torch.jit.ScriptModule):  # takes no hook that could tell of its end
                return
            local.call = call = _Running(module, sys._getframe(1), sys.exc_info()[1])
            call.handle = self._at_the_end(module, Passing(partial(self._leave, call)))

        return enter

    def _at_the_end(self, module: nn.Module, leave: Callable[..., Any]) -> RemovableHandle:
        if isinstance(module, nn.TransformerEncoderLayer):  # a hook of its own would keep it off its fused path
            return torch_module.register_module_forward_hook(leave, always_call=True)
        return module.register_forward_hook(leave, with_kwargs=True, always_call=True)

    def _inside(self, call: _Running, module: nn.Module) -> bool:
        """Whether a module is called by what runs, maybe by itself; not where that was interrupted."""
        if call.still():
            call.depth += call.module is module
            return True
        self._drop(call)
        return False

    def _leave(self, call: _Running, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> _Afterwards | None:
        """The hook at the end. `rest`: keyword arguments and the output.

        Without the former where another thread, which runs the same module, has just taken this hook off.
        """
        if call is not self._local.call or module is not call.module:  # of another thread; or it was interrupted
            return None
        if call.depth:
            call.depth -= 1
            return None
        self._local.call = None
        handle, error = call.handle, call.error
        assert handle is not None
        call.over()
        kwargs, output = rest if len(rest) == 2 else ({}, rest[0])
        if output is None and sys.exc_info()[1] is not error:
            return self._failed(module, handle)
        handle.remove()
        self.watcher.leave(module, args, kwargs, output)
        return None

    def _failed(self, module: nn.Module, handle: RemovableHandle) -> _Afterwards | None:
        """PyTorch is walking through the module's hooks: none can be taken off, nor see what this one returns."""
        thread = threading.get_ident()
        self._later[thread] = handle
        last = next(reversed(module._forward_hooks), None) == handle.id
        return _Afterwards(partial(self._let_go, thread, handle)) if last else None

    def _let_go(self, thread: int, handle: RemovableHandle) -> None:
        if self._later.get(thread) is handle:
            del self._later[thread]
            handle.remove()
            self.watcher.failed(thread)

    # Optimizers.

    def _step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling() or _extended(optimizer, sys._getframe(1)):
            return None
        self._drop_interrupted()
        self._clean_up()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        ended = self.watcher.step_begins(optimizer, closure is not None)
        return None if ended is None else (args, _Holding(kwargs, _Afterwards(ended)))

    def _step_over(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (torch.compiler.is_compiling() or _extended(optimizer, sys._getframe(1))):
            self.watcher.step_over(optimizer)

    def _drop(self, call: _Running) -> None:
        self._local.call = None
        call.over()
        if call.handle:
            call.handle.remove()

    def _drop_interrupted(self) -> None:
        call = self._local.call
        if call is not None and not call.still():
            self._drop(call)

    # What there is no hook for.

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or in_backward():  # the older checkpoint's own pass
                return original(tensors, *args, **kwargs)
            self._drop_interrupted()
            self.watcher.backward_begins(tensors)
            try:
                return original(tensors, *args, **kwargs)
            finally:
                self.watcher.backward_over()

        return backward

    def _made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_param_group(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.watcher.made(optimizer)

        return add_param_group

    def _compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_in_place(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self.watcher.compiled(module)

        return compile_in_place

    def _scaled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if scaler.is_enabled():
                self.watcher.scaled(scaler, outputs, scaled)
            return scaled

        return scale

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, optimizer, *args, **kwargs)
            if scaler.is_enabled():
                self.watcher.scaler_stepped(optimizer)
            return result

        return step


def _by_module() -> bool:
    """Whether the forward of a module has itself made the call whose hook asks, which is quickly told: PyTorch has as
    many frames around each."""
    try:
        return sys._getframe(6).f_code is sys._getframe(2).f_code
    except ValueError:  # there are not so many
        return False


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
def _replaced(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
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


_on_now: weakref.WeakSet[GlobalHooks] = weakref.WeakSet()


def _off_in_child() -> None:
    for hooks in list(_on_now):
        hooks.__exit__()
        hooks.watcher.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_off_in_child)

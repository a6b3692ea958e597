"""Emits an event for each call of PyTorch's functions that makes or changes a tensor while the model's forward runs.

And of the functions that probes name, in place of whose outputs others may stand.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hookcli import errors
from hookcli.hooks.events import Callback, HookEvent, Operator
from hookcli.hooks.gradients.tensor_grads import TensorGradHooks
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.observing_mode import ObservingMode
from hookcli.hooks.operators.functions import (
    ArgumentTensors,
    UninitialisedMemory,
    function_names,
    given_tensors,
    reads_attribute,
    writes,
)
from hookcli.hooks.origin import INSTALLED, shown_path
from hookcli.hooks.session_core import SessionCore
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.exchange import Function
from hookcli.hooks.torch_private.frames import run_as_program
from hookcli.hooks.torch_private.overrides import TorchDispatchMode
from hookcli.tensors.tree import Args, Kwargs


def running_call(core: SessionCore) -> Call | None:
    """The module's call that runs in this thread; None outside of the model's forward, and while hookcli works."""
    running = core.calls.running
    if not running or core.clock.busy:
        return None
    call, thread = running[-1], threading.get_ident()
    return call if call.thread == thread else next((c for c in reversed(running) if c.thread == thread), None)


LOSS = "(loss)"
"""Stands for the module of operators that run after the model's forward, until backward begins."""


class LossFunction(nn.Module):
    """Stands for what a program computes from the model's output."""

    def forward(self) -> None:
        """Compute nothing."""


def loss_call(core: SessionCore) -> Call | None:
    """The call that stands for the loss function in this thread; None if it is not watched, or while hookcli works."""
    call = core.loss_call
    is_of_thread = call is not None and call.thread == threading.get_ident()
    return call if is_of_thread and not core.clock.busy and torch.is_grad_enabled() else None


class OperatorCalls(ObservingMode):
    """Operators as places: each event's `fqn` is the running module's, the function's name and its number there.

    Functions that a layer of torch.nn without parts calls are its own work, and have no events. Functions that run
    outside of the model's forward, inside backward, or while hookcli works have none either.
    """

    kinds = (HookKind.FORWARD, HookKind.TENSOR_GRAD_OUTPUT)
    as_called = in_loss = True

    def __init__(self, core: SessionCore, gradients: TensorGradHooks) -> None:
        super().__init__()
        self._gradients = gradients
        self.past_compiled = core.model if core.past_compiled else None
        self.core = core
        self._lines = SourceLines()
        self._sharded = "torch.distributed.fsdp" in sys.modules
        self._named = cache(function_names)
        self._selects = cache(core.select) if core.select else None
        self._whole: dict[int, bool] = {}
        self._inside: list[Call] = []
        self._uninitialised = UninitialisedMemory()
        self._see = core.guarded(self._seen)

    def observe(self, func: object, run: Function, args: Args, kwargs: Kwargs) -> object:
        whole, run = func is not run, partial(run_as_program, run)
        call = self._owner()
        if call is None or reads_attribute(func):
            return run(*args, **kwargs)
        tensors = ArgumentTensors(given_tensors(args, kwargs))
        if any(map(is_lazy, tensors.tensors)):  # a layer that makes its parameters in its first call
            return run(*args, **kwargs)
        if call is self.core.loss_call and not any(x.requires_grad for x in tensors.tensors):
            return run(*args, **kwargs)  # what the program does besides
        for begin in self.core.before_operators:
            begin(call, func)
        if whole:  # an `autograd.Function`: its own functions are its parts; modules that it calls have operators
            self._inside.append(call)
        try:
            output = run(*args, **kwargs)
        finally:
            if whole:
                self._inside.pop()
        takes = bool(tensors.tensors)
        if (writes(func) or tensors.makes(output)) and not ((self._sharded or not takes) and called_by_pytorch(takes)):
            self._see(call, func, tensors, args, kwargs, output)
        return output

    def _owner(self) -> Call | None:
        """The module's call that a function runs in; None if the function gets no event."""
        call = running_call(self.core) or loss_call(self.core)
        if call is None or self._is_whole(call.hooked.module) or any(call is other for other in self._inside):
            return None
        return None if in_backward() else call

    def _is_whole(self, module: nn.Module) -> bool:
        whole = self._whole.get(id(module))
        if whole is None:
            whole = self._whole[id(module)] = self.core.ops != "aten" and is_whole(module)
        return whole

    def _seen(
        self, call: Call, func: Function, tensors: ArgumentTensors, args: Args, kwargs: Kwargs, output: object
    ) -> None:
        name, full = self._named(func)
        fqn = numbered(call, name)
        call.operators[name] = call.operators.get(name, 0) + 1
        index = self.core.calls.next_index()
        written = tensors.written()
        self._uninitialised.called(name, args, kwargs, output, output if writes(func) else written)
        if self._selects is not None and not self._selects(fqn, func):
            return
        made = written[0] if output is None and written else output
        event = HookEvent(HookKind.FORWARD, fqn, None, call.number, index)
        event.operator = Operator(func, name, full, self._lines.caller(), self._uninitialised.within(made))
        self.core.emit(replace(event, args=args, kwargs=kwargs, output=made))
        if torch.is_grad_enabled() and self.core.wants_of_operators(HookKind.TENSOR_GRAD_OUTPUT):
            self._gradients.made(event, made, {id(x) for x in written})


class AtenCalls(TorchDispatchMode):
    """Emits an event for each of ATen's operators, below autograd, including operators inside layers of torch.nn."""

    def __init__(self, core: SessionCore, gradients: TensorGradHooks) -> None:
        TorchDispatchMode.__init__(self)
        self._calls = OperatorCalls(core, gradients)

    def __torch_dispatch__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        return self._calls.observe(func, func, args, kwargs or {})


def failed_operator(frame: FrameType) -> tuple[str, str] | None:
    """The name and source line of the operator that a frame of an error's traceback was running; None for others."""
    variables = frame.f_locals if frame.f_code is OperatorCalls.observe.__code__ else {}
    call: Call | None = variables.get("call")
    if call is None or "output" in variables:
        return None
    name = function_names(variables["func"])[0]
    return numbered(call, name), SourceLines().caller(frame)


def numbered(call: Call, name: str) -> str:
    """The name of the operator that comes next in a module's call: `layer1.0:add_1`."""
    return f"{call.hooked.fqn}:{name}_{call.operators.get(name, 0) + 1}"


def is_whole(module: nn.Module) -> bool:
    """True for a layer of torch.nn without parts: the functions that it calls are its own work."""
    forward = getattr(module.forward, "__module__", None) or ""
    return forward.startswith("torch.") and next(module.children(), None) is None


_OURS = str(Path(errors.__file__).parent) + os.sep
_HOOKS = str(Path(errors.__file__).parent / "hooks") + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
_STDLIB = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_FSDP = str(Path(torch.__file__).parent / "distributed") + os.sep
_CHECKPOINT = str(Path(torch.__file__).parent / "utils" / "checkpoint.py")
_MODULE = str(torch.nn.modules.module.__file__)


def called_by_pytorch(takes_tensors: bool) -> bool:
    """True for a call by the hooks in which FSDP gathers and frees parameters, or for what checkpointing itself makes.

    Checkpointing calls the model's functions, too: these take tensors.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OURS, _TORCH)):
        name = frame.f_code.co_filename
        if name.startswith(_FSDP) or (name == _CHECKPOINT and not takes_tensors):
            return True
        if name == _MODULE:
            break
        frame = frame.f_back
    return False


class SourceLines:
    """Finds the line of the program that called a function. What is known of a frame's code is kept."""

    def __init__(self) -> None:
        self._codes: list[CodeType] = []  # kept alive for their ids: equal code may be of another file
        self._files: dict[int, tuple[str, bool]] = {}

    def caller(self, frame: FrameType | None = None) -> str:
        """The innermost line outside of PyTorch, hookcli and the standard library, as `file:line`.

        A model that is PyTorch's alone has no such line: the innermost one in PyTorch stands for it. The search begins
        at `frame`, or where this is called, below hookcli's own frames, and ends at those in which hookcli runs the
        model.
        """
        frame = frame or sys._getframe(1)
        while frame is not None and not self._file(frame.f_code)[0]:
            frame = frame.f_back
        otherwise = ""
        while frame is not None:
            path, programs = self._file(frame.f_code)
            if programs and path:
                return f"{path}:{frame.f_lineno}"
            if not (programs or path):
                break
            if path and Path(path).name != "overrides.py":  # there PyTorch passes calls on to modes
                otherwise = otherwise or f"{path}:{frame.f_lineno}"
            frame = frame.f_back
        return otherwise

    def _file(self, code: CodeType) -> tuple[str, bool]:
        """The path of a frame's code, "" for hookcli's, and whether it is the program's own, or one of our modes'."""
        file = self._files.get(id(code))
        if file is None:
            name = code.co_filename
            self._codes.append(code)
            if name.startswith(_OURS):
                file = "", name.startswith(_HOOKS)
            else:  # the program's own, or of a library that is not PyTorch's
                built_in = name.startswith(_STDLIB) and not any(folder in name for folder in INSTALLED)
                file = shown_path(name), not (built_in or name.startswith((_TORCH, "<frozen ")))
            self._files[id(code)] = file
        return file


Change = Callable[[HookEvent], object]
"""Returns what is to stand in place of an event's output."""
_Called = tuple[Any, tuple[str, str], Call, Args, Kwargs]


class NamedFunctions(ObservingMode):
    """Calls the `callbacks` for a name after each call of such a function in the forward of a watched module.

    Then the `changes` for that name, each of which gets the output that the one before it returned.
    """

    as_called = True

    def __init__(self, core: SessionCore) -> None:
        super().__init__()
        self.past_compiled = core.model if core.past_compiled else None
        self.callbacks: defaultdict[str, list[Callback]] = defaultdict(list)  # of all probes: a mode gets every call
        self.changes: defaultdict[str, list[Change]] = defaultdict(list)
        self._core = core
        self._lines = SourceLines()
        self._named = cache(function_names)
        self._see, self._change = core.guarded(self._seen), core.clock.counted(self._changed)

    def observe(self, func: Any, run: Function, args: Args, kwargs: Kwargs) -> object:
        named = self._named(func)
        asked = named[0] in self.callbacks or named[0] in self.changes
        call = running_call(self._core) if asked else None
        output = run_as_program(run, *args, **kwargs)
        if call is not None and call.hooked.watched and not in_backward():
            called = func, named, call, args, kwargs
            if named[0] in self.callbacks:
                self._see(called, output)
            if named[0] in self.changes:
                output = self._change(called, output)
        return output

    def _seen(self, called: _Called, output: object) -> None:
        event = self._event(called, output)
        for callback in self.callbacks[called[1][0]]:
            self._core.call_back(callback, event)

    def _changed(self, called: _Called, output: object) -> object:
        event = self._event(called, output)
        for change in self.changes[called[1][0]]:
            event.output = change(event)
        return event.output

    def _event(self, called: _Called, output: object) -> HookEvent:
        func, named, call, args, kwargs = called
        event = HookEvent(HookKind.FORWARD, call.hooked.fqn, call.hooked.module, call.number, call.index, args, kwargs)
        event.output, event.operator = output, Operator(func, *named, self._lines.caller())
        return event

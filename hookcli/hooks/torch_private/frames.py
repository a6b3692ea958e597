"""Finds PyTorch's frames on the stack by their code, not by counting, so that an additional frame changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli.tensors.torch_private import note_loss, private


def _code(function: object) -> CodeType | None:
    return getattr(function, "__code__", None)


# Calls of modules.

CALL = _code(nn.Module.__call__)
"""The code that calls a module. Its frame, with `self`, `args` and `kwargs`, lasts as long as the call."""


def frame_of_call(caller: FrameType) -> FrameType:
    """The frame that lasts as long as a module's call; `caller` is the frame that called the module's hook."""
    frame: FrameType | None = caller
    while frame is not None and frame.f_code is not CALL:
        frame = frame.f_back
    return frame or caller


def on_stack(wanted: FrameType | None) -> bool:
    """True if the frame is on this thread's stack: no hook fires if an interrupt ends its call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


_APART = 4  # frames from a module's hooks to the hooks of the module whose forward calls it, in torch 2.11 to 2.15


def called_by_module() -> bool:
    """True if the forward of another module calls the module in whose hook this is asked. Quick.

    The code of the frame decides, not its distance: if PyTorch has more frames or fewer, the answer is False.
    """
    try:
        return sys._getframe(2 + _APART).f_code is sys._getframe(2).f_code
    except ValueError:  # there are not so many
        return False


_call_impl = _code(
    private(nn.Module, "_call_impl", None, "keyword arguments are not seen where modules are watched by global hooks")
)
_CALLS_HOOKS = next(
    (c for c in (_call_impl.co_consts if _call_impl else ()) if isinstance(c, CodeType) and "kwargs" in c.co_freevars),
    None,
)
_FAR = 12  # frames, at most, between a hook and its module's call


def keywords(module: nn.Module) -> dict[str, object]:
    """The keyword arguments of this module's call, which is about to begin or has just ended; for use in its hook.

    PyTorch's global hooks do not get them. They are read from the frame that calls the hooks: it is the very dict that
    goes to `forward`, so the module gets what a pre-hook puts there. Empty if there is no such frame.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FAR):
        if frame is None:
            break
        if frame.f_code is _CALLS_HOOKS:
            names = frame.f_locals
            return names["kwargs"] if names.get("self") is module and type(names["kwargs"]) is dict else {}
        frame = frame.f_back
    return {}


# Calls of functions, which PyTorch hands to a TorchFunctionMode.

_HANDS_ON = _code(torch.overrides.handle_torch_function)
_DEEPEST = 6  # frames that the `stacklevel` of a warning in PyTorch counts


def run_as_program(function: Callable[..., Any], *args: object, **kwargs: object) -> object:
    """Call a function such that it warns as if no mode had been asked: for its own caller, in the program or PyTorch.

    Between the function and hookcli come frames that have the files and lines of the callers, and their globals, in
    which Python notes the warnings that were shown.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("hookcli."):
        frame = frame.f_back
    depth = _DEEPEST if isinstance(function, (FunctionType, partial)) else 1  # C warns for the frame that calls it
    if frame is not None and frame.f_code is _HANDS_ON and frame.f_back is not None:
        frame = frame.f_back.f_back
    callers = list[FrameType]()
    while frame is not None and len(callers) < depth:
        callers.append(frame)
        frame = frame.f_back
    run: Callable[..., object] = function
    for one in callers:
        code = _disguised(one.f_code.co_filename, one.f_code.co_name, one.f_lineno)
        run = partial(FunctionType(code, one.f_globals), run)
    return run(*args, **kwargs)


@lru_cache(1 << 12)
def _disguised(file: str, name: str, line: int) -> CodeType:
    """Code that calls a function with its arguments, as if it stood at this line of a file, in a function so named."""
    passes_on: Callable[..., object] = lambda function, *args, **kwargs: function(*args, **kwargs)  # noqa: E731
    return passes_on.__code__.replace(co_filename=file, co_name=name, co_firstlineno=max(line, 1))


# Steps of optimizers.


_TWICE = "a step that calls its base class's counts twice"
_LOST = f"optimizers created before the recording are not known, and {_TWICE}"
_wrap = private(Optimizer, "profile_hook_step", lambda step: None, _LOST)
_STEP = _code(_wrap(lambda optimizer: None))
"""The code of PyTorch's wrapper around `step`, which calls the hooks."""
if _STEP is not None and "self" not in _STEP.co_varnames:
    note_loss("the variable `self` in Optimizer.step", _TWICE)


def step_is_hooked(kind: type[Optimizer]) -> bool:
    """True if hooks see the steps of this class; they do not see the steps of other libraries' wrappers."""
    return _STEP is not None and _code(kind.step) is _STEP


def in_extended_step(optimizer: Optimizer) -> bool:
    """True if the hook that asks belongs to a base class's step, called by the subclass's step of the same optimizer.

    Searches the stack if two of its classes have a step with hooks: a counter would stay wrong after a step that an
    exception ends.
    """
    if sum(_code(vars(kind).get("step")) is _STEP for kind in type(optimizer).__mro__) < 2:
        return False
    frame: FrameType | None = sys._getframe(1)
    steps = 0
    while frame is not None and steps < 2:
        steps += frame.f_code is _STEP and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return steps > 1

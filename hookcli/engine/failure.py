"""Says where a model failed, from the traceback, so that no hook has to watch for it."""

from __future__ import annotations

import os
import re
import traceback
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import checkpoint
from torch.utils.hooks import BackwardHook

from hookcli import errors
from hookcli.engine import misfit
from hookcli.errors import ModelError, OverdueError, in_brief, message_of
from hookcli.hooks.full_backward import refuses_full_backward
from hookcli.hooks.operators.calls import failed_operator
from hookcli.hooks.torch_private.frames import CALL
from hookcli.table.meta import Meta
from hookcli.tensors import tree

_OURS = str(Path(errors.__file__).parent) + os.sep
_FRAMES = 4  # of the model's own code, in a message
_MEANINGS = {  # regular expressions, since PyTorch's words differ between versions
    "BackwardHookFunction(Backward)? is a view": "it changes in place a tensor that a full backward hook has made a "
    "view, which PyTorch refuses; tensor hooks work here (hookcli grads without --via module)",
    "does not require grad and does not have a grad_fn": "it differentiates a tensor that needs no gradient: the model "
    "is frozen, or what it differentiates does not depend on a tensor that requires grad",
    "Trying to backward through the graph a second time": "the graph was freed by an earlier backward: the model runs "
    "one itself, or uses a result of an earlier pass; backward(retain_graph=True) there keeps the graph",
}
_TRACED = re.compile(r"when making fake tensor call[\s\S]*?: got (\w+)\(['\"](.+?)['\"],?\)")  # by torch.compile
_ADVICE = {
    r"forward\(\) missing \d+ required": "give an input for each argument (--input once for each)",
    r"'indices' to have one of the following scalar types": "give whole numbers, as in --input 1x16:int64",
}
_WRAPPER = re.compile(r"_*(wrap|decorat)")  # functions of decorators, by the names that libraries give them
_DETACHES = (
    "it calls detach_() on a view, perhaps one that a full backward hook made; tensor hooks work "
    "here (hookcli grads without --via module)"
)
_TORCH = str(Path(torch.__file__).parent) + os.sep
_BACKWARD = (torch.autograd.backward.__code__, torch.autograd.grad.__code__)


class _Failed(NamedTuple):
    """The module or operator that ran when the model failed; `title` and `inputs`: its name and inputs as text;
    `source`: the line of the program that called an operator; `why`: in place of the error's own words.
    """

    fqn: str
    title: str
    inputs: str
    source: str = ""
    why: str = ""


def explain(error: BaseException, model: nn.Module, place: str = "") -> ModelError:
    """The failing module's fqn, type and input shapes, the error, and on a second line the model's own frames.

    In place of PyTorch's words for the error stands what the module takes, if that is why its inputs do not fit.

    `place` comes first.
    """
    failed, advice = _innermost(error, model), ""
    if failed and isinstance(error, (RuntimeError, ValueError, IndexError)) and not out_of_memory(error):
        calls = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code is CALL]
        for own in (frame.f_locals for frame in calls if frame.f_locals.get("self") is model):
            advice = misfit.remedy(model, own.get("args", ()), calls[-1].f_locals.get("self"), _inputs(calls[-1]))
    if not failed:
        in_backward = any(frame.f_code in _BACKWARD for frame, _ in traceback.walk_tb(error.__traceback__))
        failed = _Failed("", "backward" if in_backward and not isinstance(error, OverdueError) else "the run", "")
    elif _recomputed(error):
        failed = failed._replace(inputs=f"{failed.inputs} in backward, where its activation checkpoint runs it again")
    verb = "hangs" if isinstance(error, OverdueError) else "failed"
    message = f"{place}{failed.title} {verb}{failed.inputs}: {describe(error, failed.why, advice)}"
    return ModelError(message, fqn=failed.fqn, source=failed.source)


def _recomputed(error: BaseException) -> bool:
    """True for an error in a forward that activation checkpointing repeats in backward."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    began = next((number for number, code in enumerate(codes) if code in _BACKWARD), len(codes))
    return any(code.co_filename == checkpoint.__file__ for code in codes[began:])


def crashed(model: nn.Module, info: Meta, error: BaseException, *, place: str = "") -> ModelError:
    """The ModelError for a model that failed with `error` at a `place`; its first line is noted in `info`."""
    explained = explain(error, model, place)
    info["error"] = str(explained).partition("\n")[0]
    return explained


def describe(error: BaseException, why: str = "", advice: str = "") -> str:
    """The error, and on a second line its frames in the model's own code, innermost first.

    `why` stands in place of the error's own words, `advice` behind them.
    """
    message = message_of(error)
    what = message if isinstance(error, OverdueError) else why or in_brief(error)
    if out_of_memory(error):
        wanted = re.search(r"tried to allocate ([\d.]+ \w+)", message, re.IGNORECASE)
        what = f"out of memory{f' (for {wanted[1]})' if wanted else ''}: try a smaller --batch-size or --input"
    if traced := _TRACED.search(message):
        what = f"{traced[1]}: {traced[2]}"
    for sign, meaning in _MEANINGS.items():
        if re.search(sign, message):
            what = meaning
    for sign, known in _ADVICE.items():
        if re.search(sign, message):
            what = f"{what}; {known}"
    if refuses_full_backward(error) and "detach views" in message:
        what = _DETACHES
    what = f"{what.rstrip('.')}; {advice}" if advice else what
    frames = own_frames(error)
    return what + (f"\n  at {' < '.join(frames[: -_FRAMES - 1 : -1])}" if frames else "")


def own_frames(error: BaseException) -> list[str]:
    """The frames in the model's own code, outermost first, without those of decorators: `net.py:7 forward`."""
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, _TORCH)) and not _WRAPPER.match(frame.name)
    ]
    return [name for name, _ in groupby(frames)]  # a call that is seen has its caller's line twice


def out_of_memory(error: BaseException) -> bool:
    """True for an error that says there is no memory left, on any device."""
    on_cpu = "can't allocate memory" in message_of(error)
    return on_cpu or isinstance(error, (MemoryError, torch.OutOfMemoryError))


def _innermost(error: BaseException, model: nn.Module) -> _Failed | None:
    """The deepest module of the model, or operator, that was running."""
    names = {id(module): fqn for fqn, module in model.named_modules()}
    failed: _Failed | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if isinstance(module, BackwardHook) and id(module.module) in names:
            fqn = names[id(module.module)] or "the model"
            failed = _Failed("", f"a backward hook of {fqn} ({type(module.module).__name__})", "")
        if isinstance(module, nn.Module) and id(module) in names and frame.f_code is CALL:
            fqn = names[id(module)]
            why = misfit.reason(module, _inputs(frame))
            failed = _Failed(fqn, f"{fqn or 'the model'} ({tree.type_text(module)})", _inputs_text(frame), why=why)
        if operator := failed_operator(frame):
            name, line = operator
            failed = _Failed(name, f"{name} ({line})" if line else name, _inputs_text(frame), line)
    return failed


def _inputs(frame: FrameType) -> list[Tensor]:
    return tree.received(frame.f_locals.get("args", ()), frame.f_locals.get("kwargs", {}))


def _inputs_text(frame: FrameType) -> str:
    shapes = [tree.shape_text(x) for x in _inputs(frame)]
    return f" on input {', '.join(shapes)}" if shapes else ""

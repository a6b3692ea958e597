"""Forwards and models that cannot be observed, and why."""

from __future__ import annotations

import gc
import sys
from types import FrameType

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli.hooks.torch_private.dynamo import frames_compiled
from hookcli.hooks.torch_private.modules import submodules
from hookcli.hooks.torch_private.overrides import dispatch_modes, in_func
from hookcli.record.observe.optimizers.optimizer_steps import parameter_ids
from hookcli.tensors.tree import type_text

COMPILED_IN_PLACE = "compiled in place by Module.compile(): no hook sees its forward (TORCH_COMPILE_DISABLE=1 shows it)"


def capturing() -> bool:
    """True if a CUDA graph is being captured. Never initializes CUDA, which forks do not survive."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def why_unobservable() -> str:
    """Why a forward that begins now cannot be observed; empty if it can."""
    if in_func():
        return "runs inside torch.func or vmap: its tensors stand for others, and have no values to measure"
    if modes := dispatch_modes():
        return f"runs under {type(modes[-1]).__name__}, which would see hookcli's own operations"
    if capturing():
        return "runs while a CUDA graph is captured, which may contain nothing else"
    return ""


def why_never_ran(optimizer: Optimizer, compiled: int) -> str:
    """Why no hook saw a forward with these parameters; `compiled`: `frames_compiled` as the observation began."""
    if frames_compiled() > compiled:
        return "parameters of models whose forward no hook saw, as inside a function that torch.compile has compiled"
    parameters = parameter_ids(optimizer)
    modules = (item for item in gc.get_objects() if issubclass(type(item), nn.Module))
    built = (module for module in modules if submodules(module) is not None)
    holders = [module for module in built if any(id(p) in parameters for p in module.parameters())]
    if not holders:
        return "tensors of no module: only their gradients and updates can be observed"
    return forward_called(max(holders, key=lambda module: sum(1 for _ in module.modules())))


def forward_called(module: nn.Module) -> str:
    """The note on a module whose `forward` was called directly."""
    name = type_text(module)
    return f"{name} was never called as model(x), and {name}.forward(x) runs no hooks: call model(x) to see it"


def bypassing_owner(module: nn.Module) -> nn.Module | None:
    """The module that contains this one and whose `forward`, called directly, is now running; None if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            owner: object = frame.f_locals.get(code.co_varnames[0])
            if isinstance(owner, nn.Module) and any(part is module for part in owner.modules()) and owner is not module:
                return owner
        frame = frame.f_back
    return None

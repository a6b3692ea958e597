"""What can't be looked at, and why."""

from __future__ import annotations

import gc
import sys
from types import FrameType

import torch
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from hookcli.tensors.tree import type_text


def capturing() -> bool:
    """Whether a CUDA graph is being captured. Asks nothing that would initialize CUDA, which forks do not survive."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def unobservable() -> str:
    """Why a forward that begins now must be left alone; empty where it can be looked at."""
    if torch._C._functorch.maybe_current_level() is not None:
        return "runs inside torch.func or vmap: its tensors stand for others, and have no values to look at"
    if modes := _get_current_dispatch_mode_stack():
        return f"runs under {type(modes[-1]).__name__}, which would see hookcli's own operations"
    if capturing():
        return "runs while a CUDA graph is captured: nothing else may be in it"
    return ""


UNSEEN = "compiled in place by Module.compile(): no hook sees its forward (TORCH_COMPILE_DISABLE=1 shows it)"


def frames_compiled() -> int:
    """How many functions `torch.compile` has looked at in this process, since `torch._dynamo.reset()` if that ran."""
    return int(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))


def why_never_ran(optimizer: Optimizer, compiled: int) -> str:
    """Why no hook saw the forward that the parameters of an optimizer were used in. Looks at all objects there are.

    `compiled`: what `frames_compiled` was when the observation began.
    """
    if frames_compiled() > compiled:
        return "parameters of models whose forward no hook saw, as inside a function that torch.compile has compiled"
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    modules = (item for item in gc.get_objects() if issubclass(type(item), nn.Module))
    found = [module for module in modules if any(id(p) in held for p in module.parameters())]
    if not found:
        return "tensors of no module: what is made of them can't be seen, their gradients and updates can"
    return forward_called(max(found, key=lambda module: sum(1 for _ in module.modules())))


def forward_called(module: nn.Module) -> str:
    """What to say of a module that was not called as `module(x)`."""
    name = type_text(module)
    return f"{name} was never called as model(x), and {name}.forward(x) runs no hooks: call model(x) to see it"


def passed_by(module: nn.Module) -> nn.Module | None:
    """The module with this part whose forward is running without having been called as a module, if there is one."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            owner: object = frame.f_locals.get(code.co_varnames[0])
            if isinstance(owner, nn.Module) and any(part is module for part in owner.modules()) and owner is not module:
                return owner
        frame = frame.f_back
    return None

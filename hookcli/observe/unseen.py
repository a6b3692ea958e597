"""What can't be looked at, and why."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


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
NEVER_RAN = "parameters of models whose forward no hook saw, as inside a function that torch.compile has compiled"

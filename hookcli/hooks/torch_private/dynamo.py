"""Private names of torch.compile. It is slow to import, and only `preload` does so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from hookcli.tensors.torch_private import getter, private

_COMPILED = "compiled parts are taken for modules whose hooks never fired"


def preload() -> None:
    """Import what the first optimizer or DDP wrapper would import: it takes seconds, and would count as the run's."""
    try:
        import_module("torch._dynamo")
    except ImportError:  # a PyTorch that has it elsewhere imports it when it must
        return


def optimized_module() -> type[nn.Module] | None:
    """The class of modules that `torch.compile(module)` returns; None while nothing is compiled."""
    if "torch._dynamo" not in sys.modules:
        return None
    found: type[nn.Module] | None = private("torch._dynamo.eval_frame", "OptimizedModule", None, _COMPILED)
    return found


_compiled_call: Callable[[nn.Module], Any] = getter(nn.Module(), "_compiled_call_impl", lambda module: None, _COMPILED)


def compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` was called: hooks no longer see its calls."""
    return _compiled_call(module) is not None


def frames_compiled() -> int:
    """Number of functions that torch.compile has processed, since the last `torch._dynamo.reset()` if there was one."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return 0
    lost = "forwards in compiled functions are taken for forwards that were never called"
    return int(private("torch._dynamo.convert_frame", "FRAME_COUNTER", 0, lost))


def made_by_tracing(module: nn.Module) -> bool:
    """Whether PyTorch created this module to trace another, as torch.compile and torch.fx do."""
    return type(module).__module__.startswith(("torch.fx", "torch._"))


WRAPPED = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""The names under which torch.compile's, FSDP's and checkpoint_wrapper's wrappers hold the wrapped module. The name of
any other wrapper's attribute stays in the fqns of the modules inside."""

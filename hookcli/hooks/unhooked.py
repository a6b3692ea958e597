"""The parts of a model that call no hooks: TorchScript, and what `torch.compile` has compiled."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from hookcli.errors import UsageError


def scripted_parts(model: nn.Module) -> dict[str, str]:
    """Return the modules that take no hooks, with the reason. Raises UsageError for a model that is TorchScript."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError("the model is TorchScript, which takes no hooks: pass the nn.Module")
    return {fqn: _SCRIPTED for fqn, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)}


_SCRIPTED = "TorchScript takes no hooks: the nn.Module that it was made from does"


def compiled_parts(model: nn.Module) -> dict[str, str]:
    """Return the modules that `torch.compile` runs as one graph, which calls none of their hooks, with the reason."""
    if "torch._dynamo" not in sys.modules:  # slow to import, and what is compiled has imported it
        return {}
    from torch._dynamo.eval_frame import OptimizedModule

    modules = list(model.named_modules())
    graphs = [f"{fqn}._orig_mod".lstrip(".") for fqn, m in modules if isinstance(m, OptimizedModule)]
    graphs += [fqn for fqn, m in modules if m._compiled_call_impl is not None]
    return {
        fqn: _COMPILED
        for fqn, _ in modules
        if any(fqn == graph or fqn.startswith(f"{graph}.") or not graph for graph in graphs)
    }


_COMPILED = "compiled: torch.compile runs it as one graph that calls no hooks (TORCH_COMPILE_DISABLE=1 shows it)"


def uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Run compiled parts as they were written in this block: their hooks fire, and nothing is compiled again."""
    return torch.compiler.set_stance("force_eager") if compiled_parts(model) else nullcontext()

"""The parts of a model that a session watches, and those that call no hooks: TorchScript, and what is compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from hookcli.errors import UsageError
from hookcli.hooks.torch_private.dynamo import compiled_graphs, compiles, is_compiled
from hookcli.registry.capability import hint

Select = Callable[[str, Any], bool]
"""`select(fqn, part)` returns whether to watch a part: a module, or an operator by the function that it calls."""


def selects_parameter(select: Select | None, model: nn.Module, fqn: str) -> bool:
    """Return whether a parameter is watched, by its own name or with its module."""
    owner_fqn = fqn.rpartition(".")[0]
    owner = model.get_submodule(owner_fqn)
    return select is None or select(fqn, owner) or select(owner_fqn, owner)


def scripted_parts(model: nn.Module) -> dict[str, str]:
    """Return the modules that take no hooks, with the reason. Raises UsageError for a model that is TorchScript."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError("the model is TorchScript, which takes no hooks: pass the nn.Module")
    return {fqn: _SCRIPTED for fqn, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)}


_SCRIPTED = "TorchScript takes no hooks: use the nn.Module that it was made from"


def compiled_parts(model: nn.Module) -> dict[str, str]:
    """Return the modules that `torch.compile` runs as one graph, which calls none of their hooks, with the reason."""
    graphs = compiled_graphs(model) or []
    return {
        fqn: _COMPILED
        for fqn, _ in (model.named_modules() if graphs else ())
        if any(fqn == graph or fqn.startswith(f"{graph}.") or not graph for graph in graphs)
    }


_OPTION = hint("inside compiled")
_WAYS = f"{_OPTION}, or inside_compiled=True," if _OPTION else "inside_compiled=True"
_COMPILED = f"compiled: torch.compile runs it as one graph that calls no hooks ({_WAYS} shows what is inside)"


def uncompiled(model: nn.Module) -> AbstractContextManager[object]:
    """Run compiled parts as they were written in this block: their hooks fire, and nothing is compiled again."""
    return torch.compiler.set_stance("force_eager") if has_compiled(model) else nullcontext()


def has_compiled(model: nn.Module) -> bool:
    """True if a part is compiled, also one without its own parts; or if this PyTorch does not tell."""
    return compiled_graphs(model) != [] or (compiles() and any(is_compiled(part.forward) for part in model.modules()))

"""A model whose parameters are divided among processes by its own plan, as PyTorch's `parallelize_module` places them.

Every process has the whole batch. Processes but one do not exist: the placement is real, on the meta device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from hookcli.engine.setting import Setting
from hookcli.errors import UsageError
from hookcli.hooks.torch_private.distributed import fake_processes
from hookcli.table.formatting import listed

NOTE = "tp: divided by the model's own plan, all else whole; buffers of the communication library are not counted"
_WHOLE = ("replicate", "replicated_with_grad_allreduce")
"""Words of plans of Transformers for modules that every process has in full."""


@contextmanager
def divided(setting: Setting, processes: int) -> Iterator[Setting]:
    """The setting for one of so many processes. Building a model raises UsageError where it can't be divided."""
    with fake_processes(processes) as mesh:
        if mesh is None:
            raise UsageError(f"--parallel tp={processes}: this PyTorch, or this process, can't make a group for it")
        yield replace(setting, shard=partial(divide, mesh=mesh, processes=processes))


def divide(model: nn.Module, mesh: Any, processes: int) -> None:
    """Divide the parameters in place. Raises UsageError without a plan, or where it does not fit the model."""
    from torch.distributed.tensor.parallel import parallelize_module

    asked = f"--parallel tp={processes}"
    owner, plan = plan_of(model, asked)
    if any(not parameter.is_meta for parameter in model.parameters()):
        raise UsageError(f"{asked}: the model does not run on the meta device, where it would be divided")
    config = getattr(owner, "config", None)
    for heads in ("num_attention_heads", "num_key_value_heads"):
        number = getattr(config, heads, None)
        if isinstance(number, int) and number % processes:
            raise UsageError(f"{asked}: {heads} = {number:,} does not divide by {processes}")
    names: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in owner.modules():
        for name, parameter in module.named_parameters(recurse=False):
            names.setdefault(id(parameter), []).append((module, name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of patterns that match nothing
        parallelize_module(owner, mesh, plan)
    for (first, name), *others in names.values():
        for module, own in others:  # tied, and still alike
            kept, tied = getattr(first, name), getattr(module, own)
            if getattr(kept, "placements", None) == getattr(tied, "placements", None):
                setattr(module, own, kept)


def plan_of(model: nn.Module, asked: str) -> tuple[nn.Module, dict[str, Any]]:
    """The outermost module with a plan, and its styles of torch.distributed.tensor.parallel by patterns of modules.

    A plan is the attribute `tp_plan`, a mapping from patterns to styles, or to their words in Transformers.
    """
    plans = ((module, getattr(module, "tp_plan", None)) for module in model.modules())
    owner, plan = next(((m, plan) for m, plan in plans if isinstance(plan, Mapping) and plan), (model, {}))
    if not plan:
        raise UsageError(f"{asked}: the model brings no plan (tp_plan), as many models of Transformers do")
    made = styles()
    unknown = {f"{word} for {name}": None for name, word in plan.items() if isinstance(word, str) and word not in made}
    if unknown:
        raise UsageError(f"{asked}: its plan has {listed([*unknown], 1)}, which PyTorch's API does not place")
    named = {name: made[word]() if isinstance(word, str) else word for name, word in plan.items()}
    return owner, {name: style for name, style in named.items() if style is not None}


def styles() -> Mapping[str, Callable[[], Any]]:
    """Makers of PyTorch's styles by their words in Transformers; None for a module that stays whole."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    gathered = partial(ColwiseParallel, output_layouts=Replicate())
    of_whole = partial(RowwiseParallel, input_layouts=Replicate())
    words: dict[str, Callable[[], Any]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    words |= dict.fromkeys(("colwise_gather_output", "colwise_rep"), gathered)
    words |= dict.fromkeys(("embedding_rowwise", "rowwise_split_input", "rowwise_rep"), of_whole)
    return words | dict.fromkeys(_WHOLE, lambda: None)

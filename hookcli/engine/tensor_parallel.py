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

from hookcli.engine.setting import META, Setting
from hookcli.errors import ModelError, UsageError, class_name
from hookcli.hooks.torch_private.compilations import silent_compiler
from hookcli.hooks.torch_private.distributed import fake_processes
from hookcli.table.formatting import listed

_WHOLE = ("replicate", "replicated_with_grad_allreduce")
"""Words of plans of Transformers for modules that every process has in full."""


@contextmanager
def divided(setting: Setting, processes: int) -> Iterator[Setting]:
    """The setting for one of so many processes, on the meta device. Building a model raises UsageError where it can't
    be divided; errors of the divided model say that it was.
    """
    asked = f"--parallel tp={processes}"
    uneven: list[str] = []
    with fake_processes(processes) as mesh, silent_compiler():
        if mesh is None:
            raise UsageError(f"{asked}: this PyTorch, or this process, can't make a group for it")
        try:
            yield replace(setting, device=META, shard=partial(divide, mesh=mesh, processes=processes, uneven=uneven))
        except ModelError as error:
            why = f" ({uneven[0]})" if uneven else ""
            text = f"{asked}{why}, divided on the meta device: {error}"
            raise ModelError(text, error.reports, error.fqn, error.source) from error


def divide(model: nn.Module, mesh: Any, processes: int, uneven: list[str]) -> None:
    """Divide the parameters in place. Raises UsageError without a plan, or where it does not fit the model.

    `uneven` gets a remark on each parameter that does not divide evenly, which only some styles allow.
    """
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import parallelize_module

    asked = f"--parallel tp={processes}"
    plans = plans_of(model, asked)
    if any(not parameter.is_meta for parameter in model.parameters()):
        raise UsageError(f"{asked}: the model does not run on the meta device, where it would be divided")
    sizes = {fqn: parameter.shape for fqn, parameter in model.named_parameters()}
    with kept_ties(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of patterns that match nothing
        for owner, plan in plans:
            require_even_heads(owner, asked, processes)
            parallelize_module(owner, mesh, plan)
    placed = {fqn: x.placements[0] for fqn, x in model.named_parameters() if isinstance(x, DTensor)}
    if not placed:
        raise UsageError(f"{asked}: its plan ({listed([*plans[0][1]], 3)}) fits no layer with parameters")
    for fqn, placement in placed.items():
        size = sizes[fqn][placement.dim] if isinstance(placement, Shard) else 0
        if size % processes:
            uneven.append(f"{size:,} of {fqn} does not divide by {processes}")


@contextmanager
def kept_ties(model: nn.Module) -> Iterator[None]:
    """Keep parameters tied that this block replaces, each alike in all its places."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, name))
    yield
    for (first, name), *others in places.values():
        for module, own in others:
            kept, tied = getattr(first, name), getattr(module, own)
            if getattr(kept, "placements", None) == getattr(tied, "placements", None):
                setattr(module, own, kept)


def require_even_heads(owner: nn.Module, asked: str, processes: int) -> None:
    """Raise UsageError for a model of Transformers whose heads do not divide by the number of processes."""
    config = getattr(owner, "config", None)
    text_config = getattr(config, "get_text_config", lambda: config)()
    for heads in ("num_attention_heads", "num_key_value_heads"):
        number = getattr(text_config, heads, None)
        if isinstance(number, int) and number % processes:
            raise UsageError(f"{asked}: {heads} = {number:,} does not divide by {processes}")


def plans_of(model: nn.Module, asked: str) -> list[tuple[nn.Module, dict[str, Any]]]:
    """The outermost modules with a plan, and the styles of torch.distributed.tensor.parallel by patterns of modules.

    A plan is the attribute `tp_plan`, a mapping from patterns to styles, or to their words in Transformers.
    """
    plans: list[tuple[nn.Module, dict[str, Any]]] = []
    within: set[nn.Module] = set()
    made = styles()
    for module in model.modules():
        plan = getattr(module, "tp_plan", None)
        if module in within or not isinstance(plan, Mapping) or not plan:
            continue
        within.update(module.modules())
        words = {name: word for name, word in plan.items() if isinstance(word, str)}
        unknown = [f"{word} for {name}" for name, word in words.items() if word not in made]
        if unknown:
            raise UsageError(f"{asked}: its plan has {listed(unknown, 1)}, which PyTorch's API does not place")
        named = {**plan, **{name: made[word]() for name, word in words.items()}}
        plans.append((module, {name: style for name, style in named.items() if style is not None}))
    if not plans:
        example = '{"layers.*.up": "colwise", "layers.*.down": "rowwise"}'
        raise UsageError(f"{asked}: {class_name(model)} has no plan; give its class one, such as tp_plan = {example}")
    return plans


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

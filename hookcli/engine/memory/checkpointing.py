"""Activation checkpointing of modules that a pattern names, as `torch.utils.checkpoint` does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from hookcli.errors import UsageError
from hookcli.table.names import is_within_any, name_filter, no_match
from hookcli.tensors import tree


def checkpoint_modules(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Checkpoint the outermost modules that the patterns name: in place, for good. Returns their names.

    Raises UsageError for a pattern that names no module.
    """
    chosen = outermost(model, patterns)
    modules = dict(model.named_modules())
    for fqn in chosen:
        modules[fqn].forward = partial(_recomputed, modules[fqn].forward)
    return chosen


def _recomputed(forward: Callable[..., object], *args: object, **kwargs: object) -> object:
    return checkpoint(partial(forward, **kwargs), *args, use_reentrant=False)


def outermost(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """The modules that the patterns of `--match` name and that lie in no other of them.

    Without lists of modules, which never run.
    """
    types = {fqn: tree.type_text(module) for fqn, module in model.named_modules()}
    runs = {fqn: kind for fqn, kind in types.items() if kind not in ("ModuleList", "ModuleDict")}
    matched: set[str] = set()
    for pattern in patterns:
        matches = name_filter(pattern, runs)
        named = [fqn for fqn, kind in runs.items() if matches(fqn, kind)]
        if not named:
            raise UsageError(f"--checkpoint: {no_match(pattern, runs, 'module')}", option="checkpoint")
        matched.update(named)
    return [fqn for fqn in runs if fqn in matched and not is_within_any(fqn, matched)]

"""Selects the modules and parameters of a model that a session watches."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

Select = Callable[[str, nn.Module], bool]
"""`select(fqn, module)` returns whether to watch the module."""


def selects_parameter(select: Select | None, model: nn.Module, fqn: str) -> bool:
    """Return whether a parameter is watched: because of its own name, or because its module is."""
    owner_fqn = fqn.rpartition(".")[0]
    owner = model.get_submodule(owner_fqn)
    return select is None or select(fqn, owner) or select(owner_fqn, owner)

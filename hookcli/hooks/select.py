"""Selects the modules, operators and parameters of a model that a session watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

Select = Callable[[str, Any], bool]
"""`select(fqn, part)` returns whether to watch a part: a module, or an operator by the function that it calls."""


def selects_parameter(select: Select | None, model: nn.Module, fqn: str) -> bool:
    """Return whether a parameter is watched: because of its own name, or because its module is."""
    owner_fqn = fqn.rpartition(".")[0]
    owner = model.get_submodule(owner_fqn)
    return select is None or select(fqn, owner) or select(owner_fqn, owner)

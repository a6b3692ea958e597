"""The blocks of a model that are sharded one by one."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules with parameters in a Sequential or another container; containers themselves don't count."""
    for child in model.children():
        if isinstance(model, _CONTAINERS) and not isinstance(child, _CONTAINERS):
            yield from [child] if any(True for _ in child.parameters()) else []
        else:
            yield from blocks(child)

"""How large a module is. Apart from the shapes, whose counter of costs takes a quarter of a second to import."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Elements of all parameters in the module, each tensor once; and of those that require grad."""
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters() if not is_lazy(p)]
    return sum(n for n, _ in sizes), sum(n for n, trained in sizes if trained)

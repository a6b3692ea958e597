"""The number of parameters of a module. Kept apart from the costs, which take a quarter of a second to import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.hooks.torch_private.modules import unpacked


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Elements of all parameters in the module, each tensor once, packed ones too; and of those that require grad."""
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters() if not is_lazy(p)]
    packed = sum(x.numel() for x in packed_parameters(module))
    return sum(n for n, _ in sizes) + packed, sum(n for n, trained in sizes if trained)


def training_bytes(module: nn.Module) -> dict[str, int]:
    """The bytes of all gradients, and of AdamW's state: two moments, and a step count in float32 for each tensor."""
    sizes = [p.numel() * p.element_size() for p in module.parameters() if p.requires_grad and not is_lazy(p)]
    return {"grad_bytes": sum(sizes), "optimizer_bytes": 2 * sum(sizes) + 4 * len(sizes)}


def packed_parameters(module: nn.Module) -> Iterator[Tensor]:
    """Weights and biases of quantized modules, which are no parameters for PyTorch but packed for their kernels."""
    part: Any
    for part in module.modules():
        kind = type(part)
        if ".quantized." in kind.__module__ and not kind.__name__.endswith("PackedParams"):  # which a Linear has inside
            yield from unpacked(part)


def count_elements(tensors: Iterable[Tensor]) -> int:
    """Elements of these tensors, as far as they have a size yet."""
    return sum(x.numel() for x in tensors if not is_lazy(x))

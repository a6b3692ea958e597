"""Autograd graphs for tests of hooks on their nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchvision
from support import assert_stats, float64_stats, swept
from torch import Tensor, nn

from hookcli.hooks.native.timeline import GradRecord, NodeRecord, Timeline


class Cube(torch.autograd.Function):
    """A node in Python, whose backward needs the lock."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise KeyError("lost")


def walk(*roots: Tensor) -> list[Any]:
    """The nodes below the roots, breadth-first, as Python sees them."""
    first = [torch.autograd.graph.get_gradient_edge(root).node for root in roots]
    found = list(dict.fromkeys(first))
    for node in found:
        found.extend(n for n, _ in node.next_functions if n is not None and n not in found)
    return found


def vision_transformer() -> nn.Module:
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(32, 16, 2, 2, 16, 32, num_classes=5)
    nn.init.normal_(model.heads.head.weight)  # torchvision's zeros would make all gradients zero
    return model


def custom() -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return Cube.apply(y).relu_() + y

    return Model()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: torchvision.models.resnet18(num_classes=10),
    "vision transformer": vision_transformer,
    "custom function": custom,
}
EACH = [swept(name) if name == "resnet18" else name for name in MODELS]  # as parameters of a test


def loss_of(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = MODELS[name]()
    size = 64 if name == "resnet18" else 32
    return model, (model(torch.randn(2, 3, size, size)) ** 2).sum()


def hooks_below(*roots: Tensor) -> int:
    return int(torch.ops.hookcli_native.hooks_below(list(roots)))


def by_name(timeline: Timeline, name: str) -> NodeRecord:
    (found,) = (node for node in timeline.nodes() if node.name == name)
    return found


def exact(record: GradRecord | None, tensor: Tensor) -> None:
    assert record is not None and record.shape == tuple(tensor.shape) and record.dtype == "float32"
    assert_stats(record.stats, float64_stats(tensor), 1e-7)

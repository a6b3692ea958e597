"""Models whose graphs are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import hookcli
from hookcli.table import Report, Row, TensorStats

X = torch.tensor([[1.0, 2.0], [3.0, -4.0]])


def taken(model: nn.Module, inputs: Any, **options: Any) -> Report:
    (report,) = hookcli.capture(model, inputs, ["graph"], **options)
    return report


def out_stats(row: Row) -> TensorStats:
    return TensorStats.of(row.values, "out_")


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).relu().flatten(1)).tanh()


def by_hand(model: nn.Module, inputs: Any, loss: Callable[[Any], Tensor]) -> list[tuple[str, Any, Any]]:
    """Every node that fires: its name, the gradients in, and those out, from hooks of the test's own."""
    value = loss(model(*inputs))
    fired: list[Any] = []
    waiting, seen, handles = [value.grad_fn], set(), []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += [after for after, _ in node.next_functions if after is not None]

        def pre(grads: Any, node: Any = node) -> None:
            fired.append([node.name().rpartition("::")[2], [g.clone() for g in grads if g is not None], []])

        def post(ins: Any, outs: Any, node: Any = node) -> None:
            fired[-1][2] = [g.clone() for g in ins if g is not None]

        handles += [node.register_prehook(pre), node.register_hook(post)]
    value.backward()
    model.zero_grad()
    return [tuple(item) for item in fired]

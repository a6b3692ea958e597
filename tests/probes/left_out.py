"""Modules with what no hook sees."""

from __future__ import annotations

from typing import Any

from support import untouched
from torch import Tensor, nn
from torch.utils import _pytree

from hookcli import capture
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.probes.grads import GradsProbe
from hookcli.table import Report

PROBES: dict[str, Any] = {
    "shapes": lambda: "shapes",
    "activations": lambda: "activations",
    "inputs": lambda: "inputs",
    "outputs' gradients": lambda: GradsProbe("outputs"),
    "trace": lambda: TraceProbe(),
}


def run(model: nn.Module, inputs: Any, probe: Any) -> Report:
    with untouched(model):
        [report] = capture(model, inputs, [probe])
    return report


def reasons(report: Report, fqn: str) -> list[str]:
    return [item.reason for item in report.skipped if item.fqn == fqn]


class Returns(nn.Module):
    """Returns what a function makes of a tensor, by way of a part that takes it."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.first, self.takes, self.make = nn.Linear(4, 2), Takes(), make

    def forward(self, x: Tensor) -> Any:
        y = self.first(x)
        held = self.make(y)
        return y + self.takes(y, held), held


class Takes(nn.Module):
    def forward(self, y: Tensor, held: Any) -> Tensor:
        return y * 2


class Registered:
    """A container for pytree alone."""

    def __init__(self, hidden: Tensor, extra: Any) -> None:
        self.hidden, self.extra = hidden, extra


_pytree.register_pytree_node(
    Registered, lambda r: ([r.hidden, r.extra], None), lambda items, context: Registered(*items)
)

"""What an optimizer's step does to parameters: the change beside what there was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli import distance, tree
from hookcli.diff.discrepancy import Discrepancy
from hookcli.norms import ratio
from hookcli.observe.names import Names
from hookcli.report import Column, Row

COLUMNS = (
    Column("fqn", "Parameter"),
    Column("type", "Type"),
    Column("shape", "Shape"),
    Column("dtype", "Dtype"),
    Column("weight", "|w|"),
    Column("update", "|dw|"),
    Column("ratio", "|dw|/|w|"),
)


class Snapshot:
    """The parameters of an optimizer as they were before a step, whose copies take their memory once more until then.

    Without `copies` it knows of no change.
    """

    def __init__(self, optimizer: Optimizer, closure: bool = False, *, copies: bool = True) -> None:
        self.closure = closure
        """Whether the step runs the model itself, so that gradients are there only when it is over."""
        held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None or p.requires_grad]
        self._before = {id(p): _local(p).detach().clone() for p in held} if copies else {}

    def changes(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, tuple[nn.Parameter, Any]]:
        """For each of the parameters that the optimizer holds: what `distance` found between before and now."""
        found = {}
        for fqn, parameter in parameters:
            before = self._before.get(id(parameter))
            now = _local(parameter).detach()
            if before is not None and before.shape == now.shape and now.device.type != "meta":
                found[fqn] = parameter, distance.compare(before, now)
        return found


def rows(model: nn.Module, names: Names, changes: Mapping[str, tuple[nn.Parameter, Any]]) -> list[Row]:
    """A row per parameter. `weight` is the l2 norm before the step, `update` that of the change."""
    measured = distance.resolve([pending for _, pending in changes.values()])
    return [
        Row(
            {
                "fqn": names(fqn),
                "type": tree.type_text(model.get_submodule(fqn.rpartition(".")[0])),
                "shape": tree.shape_of(parameter),
                "dtype": tree.dtype_text(parameter),
                "weight": weight,
                "update": update,
                "ratio": ratio(update, weight),
            }
        )
        for (fqn, (parameter, _)), (weight, update) in zip(changes.items(), map(_norms, measured), strict=True)
    ]


def _norms(found: Discrepancy) -> tuple[float, float]:
    """The norms of a parameter and of its change; NaN where no element is finite before and after."""
    known = found.finite or not found.numel
    return (found.a_l2, found.error_l2) if known else (math.nan, math.nan)


def _local(parameter: Tensor) -> Tensor:
    """Of a sharded parameter the part that this process holds."""
    sharded: Any = parameter
    return sharded.to_local() if tree.is_sharded(parameter) else torch.Tensor.detach(parameter)

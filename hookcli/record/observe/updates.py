"""What an optimizer's step does to parameters: the change beside what there was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.record.observe.names import Names
from hookcli.report import Column, Row
from hookcli.report.discrepancy import Discrepancy
from hookcli.report.norms import ratio
from hookcli.tensors import distance, tree

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

    def changes(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Change]:
        """For each of the parameters that the optimizer holds: what `distance` found between before and now."""
        found = {}
        for fqn, parameter in parameters:
            before = self._before.get(id(parameter))
            now = _local(parameter).detach()
            if before is not None and before.shape == now.shape and now.device.type != "meta":
                found[fqn] = Change(parameter, before, now, distance.compare(before, now))
        return found


class Change(NamedTuple):
    """A parameter, what this process has of it before and after a step, and what `distance` makes of these."""

    parameter: nn.Parameter
    before: Tensor
    now: Tensor
    pending: Any


def rows(model: nn.Module, names: Names, changes: Mapping[str, Change]) -> list[Row]:
    """A row per parameter. `weight` is the l2 norm before the step, `update` that of the change."""
    measured = distance.resolve([change.pending for change in changes.values()])
    return [
        _row(model, names, fqn, change, found) for (fqn, change), found in zip(changes.items(), measured, strict=True)
    ]


def _row(model: nn.Module, names: Names, fqn: str, change: Change, found: Discrepancy) -> Row:
    weight, update = _norms(change, found)
    values = {
        "fqn": names(fqn),
        "type": tree.type_text(model.get_submodule(fqn.rpartition(".")[0])),
        "shape": tree.shape_of(change.parameter),
        "dtype": tree.dtype_text(change.parameter),
        "weight": weight,
        "update": update,
        "ratio": ratio(update, weight),
    }
    return Row(values | ({"sharded": True} if tree.is_sharded(change.parameter) else {}))


def _norms(change: Change, found: Discrepancy) -> tuple[float, float]:
    """The norms before and of the change, over finite elements; NaN where there is none.

    `found` is over those that are finite before and after alone, and can't tell none from zeros.
    """
    if found.a_l2 and not found.nonfinite:
        return found.a_l2, found.error_l2
    finite = change.before.isfinite()
    weight = change.before[finite].abs().double().norm().item() if finite.any() else math.nan
    both = bool((finite & change.now.isfinite()).any()) or not change.now.numel()
    return weight if change.now.numel() else 0.0, found.error_l2 if both else math.nan


def _local(parameter: Tensor) -> Tensor:
    """Of a sharded parameter the part that this process holds."""
    sharded: Any = parameter
    return sharded.to_local() if tree.is_sharded(parameter) else torch.Tensor.detach(parameter)

"""The parameter groups of the optimizers that step: their settings, and norms over their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim.optimizer import Optimizer

from hookcli.table import Row
from hookcli.table.columns import names
from hookcli.table.columns.recorded import NORMS_OF_GROUP, SETTINGS
from hookcli.table.merge import gathered

_SETTINGS = names(SETTINGS)


@dataclass(frozen=True)
class ParameterGroup:
    """A parameter group as an optimizer's step began. Settings that are tensors are copied, not read."""

    optimizer: str
    number: int
    settings: Mapping[str, object]
    parameters: Sequence[int]
    """`id` of each parameter."""


def groups_of(optimizer: Optimizer) -> list[ParameterGroup]:
    """The optimizer's parameter groups, as they are now."""
    return [
        ParameterGroup(
            type(optimizer).__name__,
            number,
            {key: _kept(group[key]) for key in _SETTINGS if key in group},
            [id(p) for p in group["params"]],
        )
        for number, group in enumerate(optimizer.param_groups)
    ]


def group_row(group: ParameterGroup, figures: Mapping[int, Mapping[str, object]]) -> Row | None:
    """The row of a group, if it holds any of the `figures` parameters; figures are the norms over these.

    `figures` has for each parameter, by id: its `numel`, and where measured its norms `unclipped_grad`, `param_grad`,
    `weight` and `update`.
    """
    mine = [figures[key] for key in group.parameters if key in figures]
    if not mine:
        return None
    return Row(
        {
            "optimizer": group.optimizer,
            "group": group.number,
            "parameters": sum(values["numel"] for values in mine),
            **{key: _plain(group.settings.get(key)) for key in _SETTINGS},
            **gathered(map(Row, mine), NORMS_OF_GROUP),
        }
    )


def _kept(setting: object) -> object:
    if isinstance(setting, (list, tuple)):
        return [_kept(item) for item in setting]
    return setting.detach().clone() if isinstance(setting, Tensor) else setting


def _plain(setting: object) -> object:
    """The setting as a number or a list of numbers; None for anything else. Waits for an accelerator."""
    if isinstance(setting, list):
        numbers = [_plain(item) for item in setting]
        return None if None in numbers else numbers
    if isinstance(setting, Tensor):
        return float(setting) if setting.numel() == 1 else None
    return float(setting) if isinstance(setting, (int, float)) else None

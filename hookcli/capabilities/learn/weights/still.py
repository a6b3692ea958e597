"""Weights that keep their values though an optimizer steps, or though no optimizer has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.record.file.record_lines import RecordedStep
from hookcli.table.stats import spacing
from hookcli.tensors import tree

_PARAMETERS, _VALUES = 16, 64
_ENDS_BY_ITSELF = "LBFGS"  # which makes no step once the gradient is below its tolerance


def some_values(parameters: Mapping[str, Tensor], least: int = 0) -> dict[str, Tensor]:
    """Copies of a few values of some trained parameters of so many dimensions at least. Waits for nothing."""
    trained = [(fqn, p) for fqn, p in parameters.items() if is_trained(p) and p.dim() >= least]
    return {fqn: first_values(p) for fqn, p in islice(trained, 0, None, max(len(trained) // _PARAMETERS, 1))}


def is_trained(parameter: Tensor) -> bool:
    """True if a parameter has a gradient, and values by now."""
    return parameter.requires_grad and not is_lazy(parameter)


def first_values(parameter: Tensor) -> Tensor:
    """A copy of a few values; none of what has no plain memory."""
    local = tree.local(parameter.detach())
    return local.reshape(-1)[:_VALUES].clone() if tree.is_plain(local) else torch.empty(0)


@dataclass
class Still:
    """The last recorded steps in a row in which no optimizer changed a weight, and between which none moved.

    An optimizer may change weights in some of its steps alone, which need not be recorded. Without one, `unmoved`
    counts the recorded steps in a row before which no weight has moved.
    """

    steps: int = 0
    since: int = 0
    unmoved: int = 0
    _before: Sequence[Tensor] = field(default_factory=tuple)

    def fields(
        self,
        step: RecordedStep,
        module: nn.Module,
        values: Sequence[Tensor],
        gradient: float | None,
        *,
        by_hand: bool,
    ) -> dict[str, Any]:
        """The fields of a line, with this step of a module, before which some parameters had these values.

        `gradient`: the norm of the gradient that the optimizer took. `by_hand`: no optimizer has the parameters. May
        wait for an accelerator.
        """
        moved = len(values) != len(self._before) or not all(map(torch.equal, values, self._before))
        self._before = values
        self.unmoved = 0 if moved or not by_hand else self.unmoved + 1
        fields = {"by_hand": by_hand, "unmoved": self.unmoved}
        groups = step.rows("optimizer")
        ends = any(row.get("optimizer") == _ENDS_BY_ITSELF for row in groups)
        if ends or not groups or any(row.get("update") != 0 for row in groups):
            self.steps = 0
            return fields
        self.steps = 1 if moved else self.steps + 1
        self.since = step.step if self.steps == 1 else self.since
        rates = [row.get("lr") or 0.0 for row in groups]
        numel = max(sum(p.numel() for p in module.parameters()), 1)
        rounded = gradient is not None and rounds_away(values, max(rates) * min(1.0, gradient / math.sqrt(numel)))
        name = groups[0]["optimizer"]
        return {**fields, "still": self.steps, "since": self.since, "rounded": rounded, "optimizer": name}


def rounds_away(values: Sequence[Tensor], update: float) -> bool:
    """True if an update of this size is less than the distance to the next number, for half of these tensors."""
    known = [x for x in values if x.is_floating_point() and x.numel()]
    near = [spacing(str(x.dtype).removeprefix("torch."), float(x.float().square().mean().sqrt())) for x in known]
    spacings = [*filter(None, near)]
    return bool(spacings) and 0 < update < median(spacings)

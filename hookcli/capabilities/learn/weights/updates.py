"""The gradients by which a step updates the weights, with an optimizer or without one, and the optimizer's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli.record.observe.steps.losses import Gradients, gradients_of


def gradients_for(optimizer: Optimizer) -> Gradients:
    """The gradients that an optimizer finds."""
    return gradients_of(p for group in optimizer.param_groups for p in group["params"])


@dataclass
class GradientsBefore:
    """The gradients of the optimizers' parameters, or else of the model's, as each backward pass of a step began."""

    each: list[Gradients] = field(default_factory=list)
    by_hand: bool = True
    """False once an optimizer is known: the program does not update the weights itself."""

    def pass_begins(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self.by_hand = self.by_hand and not optimizers
        self.each += [gradients_for(one) for one in optimizers] if optimizers else [gradients_of(module.parameters())]

    def are_in(self, taken: Gradients) -> bool:
        """True if these include the gradients of the step before. May wait for an accelerator.

        They do not if one was None as a backward pass began, or if all of the sample were zero.
        """
        return all(one.number >= taken.number and any(map(bool, one.filled)) for one in self.each)

    def left_by_hand(self, module: nn.Module, *, moves: bool) -> bool | None:
        """True if a step without an optimizer began with old gradients; None if it did, but `moves` no weight."""
        old = self.are_in(gradients_of(module.parameters())) if self.each else None
        return old if moves or old is False else None


@dataclass
class Settings:
    """Settings of the optimizers that step: the rate with which a scheduler began, and whether one maximizes."""

    initial: object = None
    maximizes: bool = False

    def note(self, optimizer: Optimizer) -> None:
        if self.initial is None:
            self.initial = optimizer.param_groups[0].get("initial_lr")
        self.maximizes = self.maximizes or any(group.get("maximize") is True for group in optimizer.param_groups)

    def fields(self) -> dict[str, Any]:
        """The fields of a line."""
        initial = float(self.initial) if isinstance(self.initial, (int, float)) else None
        return {"initial": initial, "maximizes": self.maximizes}

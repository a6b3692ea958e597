"""The gradients by which a step updates the weights, with an optimizer or without one, and the optimizer's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.learn.weights.still import first_values
from hookcli.record.observe.steps.losses import Gradients, gradients_of
from hookcli.tensors import tree
from hookcli.tensors.torch_private import version

_SOME = 4  # parameters


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


class StepGradient(NamedTuple):
    """A parameter whose gradient an optimizer takes: how often both were changed in place until then."""

    parameter: ref[Tensor]
    changes: int
    gradient: tuple[int, int]
    """The id of the gradient, too."""
    values: Tensor
    """A few values of the gradient."""


@dataclass
class GradientsAfter:
    """The gradients that the optimizer of a recorded step has taken: whether the program writes to them afterwards.

    Gradients that decay, instead of being cleared, are kept on purpose.
    """

    _of_step: Sequence[StepGradient] = ()
    _usual: int = 0
    """The least number of in-place changes of a parameter until the next pass, as of one step."""
    _pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Values of gradients that the program has written to, before and after it."""
    _written: bool = False

    def take(self, optimizer: Optimizer) -> None:
        """Note the gradients that an optimizer of PyTorch takes: others may write to them in their own step."""
        if not type(optimizer).__module__.startswith("torch.optim"):
            return
        some = islice((p for group in optimizer.param_groups for p in group["params"]), _SOME)
        known = ((p, tree.gradient(p)) for p in some if not p.is_inference())
        self._of_step = [
            StepGradient(ref(p), version(p), (id(grad), version(grad)), first_values(grad))
            for p, grad in known
            if grad is not None
        ]

    def pass_begins(self) -> None:
        """A backward pass begins, of a recorded step or another. Waits for nothing."""
        for one in self._of_step:
            p = one.parameter()
            grad = tree.gradient(p) if p is not None else None
            if p is None or grad is None or not (number := version(p) - one.changes):
                continue
            self._usual = min(self._usual or number, number)
            is_other = (id(grad), version(grad)) != one.gradient
            if is_other and number == self._usual:  # of more changes, some steps were not followed
                self._pairs.append((one.values, first_values(grad)))
        self._of_step = ()

    def written(self) -> bool:
        """True if the program has given gradients other values after a step. May wait for an accelerator."""
        self._written = self._written or any(not torch.equal(before, after) for before, after in self._pairs)
        self._pairs.clear()
        return self._written


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

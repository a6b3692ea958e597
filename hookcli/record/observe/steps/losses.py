"""The losses of a step: the numbers whose gradients the optimizer gets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.hooks.torch_private.overrides import stored_values
from hookcli.tensors import tree
from hookcli.tensors.torch_private import version

# The smallest gradients tell whether all were set to zero; reading more would cost time in every backward pass.
_READ = 8


class Gradients(NamedTuple):
    """The number of parameters that have a gradient, and for a few of these whether they hold more than zeros."""

    number: int
    filled: list[Tensor]

    def cleared(self, now: Gradients) -> bool:
        """True if the program has set these gradients to None or zero until `now`. May wait for an accelerator."""
        if not (self.number and now.number):
            return self.number > 0
        return any(map(bool, self.filled)) and not any(map(bool, now.filled))


class Losses:
    """The losses of the backward passes through one model. Holds copies, so an accelerator is not waited for."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._passes: list[tuple[Sequence[Tensor], Gradients, Gradients]] = []  # terms, gradients before and after
        self._before = Gradients(0, [])
        self._taken: dict[int, int] = {}  # by optimizer: the number of passes before its step

    def begin_pass(self) -> None:
        if self._passes:
            self._before = gradients_of(self._model.parameters())

    def add(self, terms: Sequence[Tensor]) -> None:
        """Add the pass, which went through this model; its loss is the sum of `terms`, each a single number."""
        self._passes.append((terms, self._before, gradients_of(self._model.parameters())))

    def from_pass(self, begin: int) -> list[float]:
        """The losses of the passes from this one on, counted from 0."""
        return [sum(map(float, terms)) for terms, _, _ in self._passes[begin:]]

    def taken(self, optimizer: int) -> None:
        """An optimizer has stepped by the gradients: where optimizers step in turns, others may be cleared between."""
        self._taken[optimizer] = len(self._passes)

    def since_cleared(self) -> list[float]:
        """A loss per backward pass whose gradients an optimizer was given; the step's loss is their sum.

        A GAN clears the gradients that its generator's pass leaves in the discriminator; a closure clears the gradients
        of its previous evaluation. Without an optimizer's step all passes count since the gradients were last cleared.
        """
        return [loss for _, loss in self._kept()]

    def by_optimizer(self) -> dict[int, float]:
        """The loss of each optimizer, if they stepped in turns, each after other backward passes."""
        ends = sorted({0, *self._taken.values()})
        begins, kept = dict(pairwise(reversed(ends))), self._kept() if ends[2:] else []
        taken = {key: (begins[end], end) for key, end in self._taken.items() if end}
        losses = {key: [x for number, x in kept if begin <= number < end] for key, (begin, end) in taken.items()}
        return {optimizer: sum(passes) for optimizer, passes in losses.items() if passes}

    def _kept(self) -> list[tuple[int, float]]:
        kept: list[tuple[int, float]] = []
        left, safe = Gradients(0, []), 0
        for number, (terms, before, after) in enumerate(self._passes[: max(self._taken.values(), default=0) or None]):
            safe = len(kept) if number in self._taken.values() else safe
            if left.cleared(before):
                del kept[safe:]
            kept.append((number, sum(map(float, terms))))
            left = after
        return kept


Held = Mapping[int, Sequence[tuple[int, int] | None]]
"""Which gradients each optimizer's (by id) parameters hold; None for a parameter without one."""


def looked_at(optimizers: Iterable[Optimizer]) -> dict[int, list[Tensor]]:
    """The parameters whose gradients tell what a pass has changed: some if there is one optimizer, else all."""
    parameters = {id(o): [p for group in o.param_groups for p in group["params"]] for o in optimizers}
    most = _SAMPLED if len(parameters) == 1 else math.inf
    return {key: held[:: math.ceil(len(held) / most) or 1] for key, held in parameters.items()}


class HeldGradients:
    """The gradients that optimizers hold now: all of them, or some if there is one optimizer. Waits for nothing."""

    def __init__(self, parameters: Mapping[int, Sequence[Tensor]]) -> None:
        self._parameters = parameters

    @property
    def several(self) -> bool:
        """True if there is more than one optimizer."""
        return len(self._parameters) > 1

    @cached_property
    def held(self) -> Held:
        return {key: [_state(tree.gradient(p)) for p in held] for key, held in self._parameters.items()}

    def changed_since(self, before: Held) -> set[int]:
        """The optimizers (ids) whose gradients have changed."""
        return {key for key, held in self.held.items() if before.get(key, held) != held}

    def cleared_since(self, before: Held) -> set[int]:
        """The optimizers whose gradients the program has set to None or zero. May wait for an accelerator."""
        return {key for key in self.changed_since(before) if any(before[key]) and not self._filled(key)}

    def _filled(self, key: int) -> bool:
        now = gradients_of(self._parameters[key])
        return now.number > 0 and (not now.filled or any(map(bool, now.filled)))


_SAMPLED = 8


def _state(grad: Tensor | None) -> tuple[int, int] | None:
    return None if grad is None else (id(grad), version(grad))


def gradients_of(parameters: Iterable[Tensor]) -> Gradients:
    """The gradients that these parameters hold now. Waits for nothing."""
    grads = tree.gradients(parameters)
    stored = [stored_values(tree.local(grad)) for grad in sorted(grads, key=Tensor.numel)[:_READ]]
    return Gradients(len(grads), [x.any() for x in stored if x.device.type != "meta"])

"""The losses of a step: the numbers whose gradients the optimizer gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from hookcli.hooks.torch_private.overrides import stored_values
from hookcli.tensors import tree

# The smallest gradients tell whether all were set to zero; reading more would cost time in every backward pass.
_READ = 8


class _Gradients(NamedTuple):
    """The number of parameters that have a gradient, and for a few of these whether they hold more than zeros."""

    number: int
    filled: list[Tensor]

    def cleared(self, now: _Gradients) -> bool:
        """True if the program has set these gradients to None or zero until `now`. May wait for an accelerator."""
        if not (self.number and now.number):
            return self.number > 0
        return any(map(bool, self.filled)) and not any(map(bool, now.filled))


class Losses:
    """The losses of the backward passes through one model. Holds copies, so an accelerator is not waited for."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._passes: list[tuple[Sequence[Tensor], _Gradients, _Gradients]] = []  # terms, gradients before and after
        self._before = _Gradients(0, [])
        self._returned = 0

    def begin_pass(self) -> None:
        """Note the gradients as a backward pass begins, perhaps through this model."""
        if self._passes:
            self._before = _gradients(self._model)

    def add(self, terms: Sequence[Tensor]) -> None:
        """Add the pass, which went through this model; its loss is the sum of `terms`, each a single number."""
        self._passes.append((terms, self._before, _gradients(self._model)))

    def new(self) -> list[float]:
        """The losses added since the last call of `new`."""
        returned, self._returned = self._returned, len(self._passes)
        return [_sum(terms) for terms, _, _ in self._passes[returned:]]

    def since_cleared(self) -> list[float]:
        """A loss per backward pass since the program last cleared the gradients; the step's loss is their sum.

        A GAN clears the gradients that its generator's pass leaves in the discriminator; a closure clears those of its
        previous evaluation.
        """
        kept: list[float] = []
        left = _Gradients(0, [])
        for terms, before, after in self._passes:
            if left.cleared(before):
                kept.clear()
            kept.append(_sum(terms))
            left = after
        return kept


def _sum(terms: Sequence[Tensor]) -> float:
    return sum(float(term) for term in terms)


def _gradients(model: nn.Module) -> _Gradients:
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    found = [part for part in map(_elements, sorted(grads, key=Tensor.numel)[:_READ]) if part.device.type != "meta"]
    return _Gradients(len(grads), [part.any() for part in found])


def _elements(grad: Tensor) -> Tensor:
    """The local shard of a sharded gradient, the stored values of a sparse one."""
    mine = tree.local(grad)
    stored: Tensor = stored_values(mine) if mine.is_sparse else mine
    return stored

"""The losses of a step: what backward passes were of whose gradients the optimizer gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from hookcli.tensors import tree

# So many gradients, the smallest, tell whether all were set to zero: to read more of them takes time in each pass.
_READ = 8


class _Gradients(NamedTuple):
    """How many parameters have a gradient, and of a few whether there is anything but zeros in it."""

    number: int
    filled: list[Tensor]

    def cleared(self, now: _Gradients) -> bool:
        """Whether the program has set these to None or to zero until `now`. On an accelerator this may wait."""
        if not (self.number and now.number):
            return self.number > 0
        return any(map(bool, self.filled)) and not any(map(bool, now.filled))


class Losses:
    """Those of passes through one model. Holds copies, which on an accelerator wait for nothing."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._passes: list[tuple[Sequence[Tensor], _Gradients, _Gradients]] = []  # terms, gradients before and after
        self._before = _Gradients(0, [])
        self._told = 0

    def begins(self) -> None:
        """A pass begins, perhaps through this model."""
        if self._passes:
            self._before = _gradients(self._model)

    def add(self, terms: Sequence[Tensor]) -> None:
        """The pass is over, and was through this model: of the sum of these lone numbers."""
        self._passes.append((terms, self._before, _gradients(self._model)))

    def new(self) -> list[float]:
        """Those since it was last asked for them."""
        told, self._told = self._told, len(self._passes)
        return [_sum(terms) for terms, _, _ in self._passes[told:]]

    def all(self) -> list[float]:
        """Those of the passes since the program last cleared the gradients, one a pass; the loss is their sum.

        A GAN clears the gradients that its generator's pass leaves in the discriminator, a closure those of the
        evaluation before.
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
    """Of a sharded gradient what this process has of it, of a sparse one what it stores."""
    mine: Any = grad.detach()
    mine = mine.to_local() if tree.is_sharded(grad) else mine
    stored: Tensor = mine._values() if mine.is_sparse else mine
    return stored

"""Batches of a step that train nothing: their gradients are cleared before the next pass, or they get no backward()."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isclose
from weakref import ref

import torch
from torch import Tensor

from hookcli.capabilities.learn.forwards.batches import Loaders
from hookcli.capabilities.learn.graphs import Mark
from hookcli.capabilities.learn.weights.still import first_values
from hookcli.hooks.torch_private.losses import Term
from hookcli.tensors import tree

STEPS = 3  # recorded ones, all of which must show it
_PASSES, _ROUNDED = 4, 1e-4  # of fewer passes the factor of each may be meant; of a factor
_SAME = 0.999  # the cosine of two gradients, of which one may be clipped


@dataclass
class LostBatches:
    """The forwards and backward passes of a step."""

    loaders: Loaders
    forwards: list[Sequence[ref[Mark]]] = field(default_factory=list)
    """For each forward before the first backward pass the marks on its outputs."""
    factors: list[float] = field(default_factory=list)
    """For each backward pass the number that its loss was multiplied by; 0 if that is not known."""
    _begun: int = 0
    _between: int = 0
    """The batches that DataLoaders gave from the first forward to the first backward pass."""
    _alive: list[bool] = field(default_factory=list)
    _left: list[Tensor] = field(default_factory=list)
    _taken: list[Tensor] = field(default_factory=list)

    def enter(self) -> None:
        """A forward begins."""
        if not self.forwards:
            self._begun = self.loaders.number

    def leave(self, outputs: Iterable[Tensor]) -> None:
        """A forward has returned these outputs."""
        if not self.factors:
            self.forwards.append([Mark.on(x.grad_fn) for x in outputs if x.grad_fn is not None])

    def backward_begins(self, terms: Sequence[Term]) -> None:
        """A backward pass begins from the sum of these terms; none if they are not known."""
        if not self.factors:
            self._between = self.loaders.number - self._begun
            self._alive = [any(mark() is not None for mark in marks) for marks in self.forwards]
        self.factors.append(terms[0].factor if len(terms) == 1 and not terms[0].summed else 0.0)

    def backward_over(self, parameters: Iterable[Tensor]) -> None:
        """A backward pass has left these parameters' gradients. Waits for nothing."""
        self._left = values_of(parameters)

    def optimizer_takes(self, parameters: Iterable[Tensor]) -> None:
        """An optimizer is about to step. Waits for nothing."""
        self._taken = values_of(parameters)

    def words(self, kept: int) -> str:
        """Words on batches that train nothing, where so many passes were `kept`; "" if none. Waits for an accelerator.

        Each of several passes divides its loss by their number, and the optimizer takes the last one's gradients alone;
        or a DataLoader's batches go through the model, and when backward() begins only the last one's graph is left.
        """
        passes, batches = len(self.factors), len(self._alive)
        divided = all(isclose(factor * passes, 1, rel_tol=_ROUNDED) for factor in self.factors)
        if passes >= _PASSES and kept == 1 and divided and self.took_the_last():
            last = "gradients are cleared before each, so that only the last one counts"
            return (
                f"a step has {passes:,} backward passes, each of 1/{passes:,} of the loss, but {last}: clear them once"
            )
        only_last = batches > 1 and self._alive == [False] * (batches - 1) + [True]
        if passes == 1 and only_last and self._between in (batches - 1, batches):  # the end of an epoch is taken, too
            last = "backward() is called for the last one alone: call it in the loop over batches"
            return f"{batches:,} batches of a DataLoader go through the model in a step, but {last}"
        return ""

    def took_the_last(self) -> bool:
        """True if the optimizer took the gradients of the last pass, scaled or not. Waits for an accelerator."""
        left, taken = (
            torch.cat([torch.empty(0), *(x.float().cpu() for x in one)]) for one in (self._left, self._taken)
        )
        same = left.shape == taken.shape and torch.cosine_similarity(left, taken, dim=0) > _SAME
        return bool(same)


def values_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Copies of a few values of the gradient of each parameter that has one. Waits for nothing."""
    return [first_values(grad) for grad in map(tree.gradient, parameters) if grad is not None]

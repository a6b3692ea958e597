"""Steps of optimizers, and which of them a model's parameters belong to."""

from __future__ import annotations

import gc
from weakref import ref

from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli.tensors.weak import WeakIds


class Clocks:
    """Each optimizer's number of steps. Holds none of them."""

    def __init__(self) -> None:
        self._counts: WeakIds[Optimizer, int] = WeakIds()
        self.known = 0
        """How often one was added or got parameters: who asked before it was so often must ask again."""

    def find(self) -> None:
        """Add those that there are already."""
        for item in gc.get_objects():
            if _steps(type(item)):  # isinstance would ask the object, which may be a proxy
                self.add(item)

    def add(self, optimizer: Optimizer) -> None:
        """Count this one's steps, from 0."""
        if optimizer not in self._counts:
            self._counts[optimizer] = 0
            self.known += 1

    def changed(self, optimizer: Optimizer) -> None:
        """It has parameters that it had not before."""
        self.add(optimizer)
        self.known += 1

    def tick(self, optimizer: Optimizer) -> None:
        """A step is over."""
        self.add(optimizer)
        self._counts[optimizer] = self.steps(optimizer) + 1

    def steps(self, optimizer: Optimizer) -> int:
        """How many steps it has made; the number of the one that it makes next."""
        return self._counts.get(optimizer) or 0

    def of(self, model: nn.Module) -> list[Optimizer]:
        """Those that hold a parameter of the model."""
        mine = {id(p) for p in model.parameters()}
        return [optimizer for optimizer, _ in self._counts.items() if not mine.isdisjoint(ids(optimizer))]


class Rounds:
    """Counts the steps of a program with several optimizers. Those that step in turn make one together."""

    def __init__(self) -> None:
        self.count = 0
        self._stepped: list[ref[Optimizer]] = []

    def stepped(self, optimizer: Optimizer) -> None:
        """It has made a step: a new one of the program where it made one already, or where all the others are gone."""
        alive = [other for reference in self._stepped if (other := reference()) is not None]
        if not alive or any(optimizer is other for other in alive):
            self.count += 1
            self._stepped.clear()
        self._stepped.append(ref(optimizer))


def _steps(kind: type) -> bool:
    """Whether it is one of optimizers whose steps hooks see.

    Those that Lightning and accelerate put around them are optimizers, too, with the same parameters, but only the one
    inside is PyTorch's, who marks what it hooks.
    """
    return issubclass(kind, Optimizer) and hasattr(kind.step, "hooked")


def ids(optimizer: Optimizer) -> set[int]:
    """The identities of its parameters."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}

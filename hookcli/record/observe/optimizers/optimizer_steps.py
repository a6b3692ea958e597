"""Counts steps: of each optimizer, and of a program with several of them."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from weakref import ref

from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli.hooks.torch_private.frames import step_is_hooked
from hookcli.tensors.weak import WeakIds


class OptimizerSteps:
    """Each optimizer's number of steps, without keeping the optimizers alive."""

    def __init__(self) -> None:
        self._counts: WeakIds[Optimizer, int] = WeakIds()
        self.version = 0
        """Changes when an optimizer or its parameters are added; callers cache against it."""

    def find_existing(self, optimizers: Iterable[Optimizer] | None = None) -> None:
        """Add the optimizers that the program has made already; None searches for them."""
        if optimizers is None:
            # Not isinstance, which would ask the object, perhaps a proxy. The wrappers of Lightning and accelerate are
            # Optimizers too, of the same parameters, but have no hooks.
            objects = ((item, type(item)) for item in gc.get_objects())
            optimizers = (item for item, kind in objects if issubclass(kind, Optimizer) and step_is_hooked(kind))
        for optimizer in optimizers:
            self.add(optimizer)

    def __iter__(self) -> Iterator[Optimizer]:
        return (optimizer for optimizer, _ in self._counts.items())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, optimizer: Optimizer) -> None:
        """Count this optimizer's steps from 0, unless they are counted already."""
        if optimizer not in self._counts:
            self._counts[optimizer] = 0
            self.version += 1

    def parameters_added(self, optimizer: Optimizer) -> None:
        self.add(optimizer)
        self.version += 1

    def stepped(self, optimizer: Optimizer) -> None:
        self.add(optimizer)
        self._counts[optimizer] = self.count(optimizer) + 1

    def count(self, optimizer: Optimizer) -> int:
        """Steps made so far; also the number of the next one."""
        return self._counts.get(optimizer) or 0

    def of(self, model: nn.Module) -> list[Optimizer]:
        mine = {id(p) for p in model.parameters()}
        return [optimizer for optimizer, _ in self._counts.items() if not mine.isdisjoint(parameter_ids(optimizer))]


class ProgramSteps:
    """Counts the steps of a program: optimizers that step in turn make one step together."""

    def __init__(self) -> None:
        self.count = 0
        self._stepped: list[ref[Optimizer]] = []

    def stepped(self, optimizer: Optimizer) -> None:
        """Note an optimizer's step. The program's next step begins if it stepped before, or all others are gone."""
        alive = [other for reference in self._stepped if (other := reference()) is not None]
        if not alive or any(optimizer is other for other in alive):
            self.count += 1
            self._stepped.clear()
        self._stepped.append(ref(optimizer))


def parameter_ids(optimizer: Optimizer) -> set[int]:
    """`id` of each parameter of an optimizer."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}

"""A mode that follows parameters through a run, also past places where autograd no longer does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.observing_mode import ObservingMode
from hookcli.hooks.operators.functions import ArgumentTensors, given_tensors
from hookcli.hooks.tensor_origins import TensorOrigins
from hookcli.hooks.torch_private.exchange import Function
from hookcli.tensors import tree
from hookcli.tensors.tree import Args, Kwargs

Guard = Callable[[Callable[[], Any]], Any]
"""Calls a function and returns what it does; None if it fails, or no more."""


class ParameterReach(ObservingMode):
    """Notes for each tensor which of these parameters it was computed from, detached or not.

    `left`: the numbers of those that a Python or NumPy number was computed from, which can't be followed. What hookcli
    itself computes, as the `clock` of a running program tells, is left out; and `guard` does the mode's own work, so
    that a failure of it is none of the program's.
    """

    as_called = in_loss = True

    def __init__(
        self, parameters: Sequence[Tensor], clock: ProgramClock | None = None, guard: Guard = lambda do: do()
    ) -> None:
        super().__init__()
        self._clock, self._guard = clock, guard
        self.left: frozenset[int] = frozenset()
        self._origins = TensorOrigins(())
        self._sets = [frozenset([number]) for number in range(len(parameters))]
        for number, x in enumerate(parameters):
            self._origins.made(x, number)

    def of(self, x: Tensor) -> frozenset[int]:
        """The numbers of the parameters that a tensor was computed from."""
        number = self._origins.of(x)
        return frozenset() if number is None or number < 0 else self._sets[number]

    def observe(self, func: object, run: Function, args: Args, kwargs: Kwargs) -> object:
        if self._clock is not None and self._clock.busy:
            return run(*args, **kwargs)
        received = self._guard(partial(self.received, args, kwargs))
        output = run(*args, **kwargs)
        if received is not None:
            tensors, numbers = received
            self._guard(partial(self.note, func, tensors, numbers, output))
        return output

    def received(self, args: Args, kwargs: Kwargs) -> tuple[ArgumentTensors, frozenset[int]]:
        """The tensors that a function gets, and the numbers of the parameters that these were computed from."""
        with torch.DisableTorchFunction():
            tensors = given_tensors(args, kwargs)
            return ArgumentTensors(tensors), frozenset[int]().union(*map(self.of, tensors))

    def note(self, func: object, received: ArgumentTensors, numbers: frozenset[int], output: object) -> None:
        """Note that a function computed its output, and what it wrote into, from the parameters of these numbers."""
        if getattr(func, "__name__", "") in _LEAVE:
            self.left |= numbers
        elif numbers:
            with torch.DisableTorchFunction():
                self._sets.append(numbers)
                for x in received.written():
                    self._origins.written(x, len(self._sets) - 1)
                for _, x in tree.leaves(output):
                    self._origins.made(x, len(self._sets) - 1)


_CONVERSIONS = ("bool", "int", "float", "complex", "index", "array", "contains")
_LEAVE = frozenset(("item", "tolist", "numpy", "is_nonzero", "equal", *(f"__{name}__" for name in _CONVERSIONS)))

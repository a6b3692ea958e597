"""The states of random number generators: PyTorch's, Python's own and numpy's."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.tensors import tree


@dataclass(frozen=True, eq=False)
class RandomStates:
    """States of PyTorch's generators (the CPU's first), of Python's, and of numpy's where it is imported.

    The last two are None where they run on (`others_run_on`).
    """

    torch: tuple[Tensor, ...]
    python: Any
    numpy: bytes | None

    def same(self, other: RandomStates) -> bool:
        """True if nothing was drawn between these states and those."""
        drew_nothing = self.python == other.python and self.numpy == other.numpy
        return drew_nothing and all(map(torch.equal, self.torch, other.torch))


def accelerators(model: nn.Module, inputs: object) -> list[torch.device]:
    """The devices other than the CPU on which a run has tensors, and so random number generators."""
    tensors = [*model.parameters(), *model.buffers(), *(t for _, t in tree.leaves(inputs))]
    return sorted({t.device for t in tensors} - {torch.device("cpu"), torch.device("meta")}, key=str)


def random_states(devices: Iterable[torch.device]) -> RandomStates:
    """The states of all generators; of accelerators, these devices'."""
    accelerated = (torch.get_device_module(device).get_rng_state(device) for device in devices)
    torch_states = (torch.get_rng_state(), *accelerated)
    if _run_on.get():
        return RandomStates(torch_states, None, None)
    numpy = sys.modules.get("numpy.random")
    state = pickle.dumps(numpy.get_state(legacy=False)) if numpy else None
    return RandomStates(torch_states, random.getstate(), state)


@contextmanager
def restored_random_states(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """A context after which all generators are as they were before; of accelerators, these devices'."""
    states = random_states(devices)
    try:
        yield
    finally:
        set_random_states(devices, states)


@contextmanager
def others_run_on() -> Iterator[None]:
    """A context in which Python's and numpy's generators run on from run to run; they are restored at its end.

    PyTorch's seed does not reach them, so runs that should be the same differ if a model draws from them.
    """
    with restored_random_states():
        token = _run_on.set(True)
        try:
            yield
        finally:
            _run_on.reset(token)


_run_on = ContextVar("_run_on", default=False)


def set_random_states(devices: Iterable[torch.device], states: RandomStates) -> None:
    """Put back what `random_states` read."""
    torch.set_rng_state(states.torch[0])
    for device, state in zip(devices, states.torch[1:], strict=True):
        torch.get_device_module(device).set_rng_state(state, device)
    if states.python is not None:
        random.setstate(states.python)
    if states.numpy is not None:
        sys.modules["numpy.random"].set_state(pickle.loads(states.numpy))

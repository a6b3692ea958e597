"""The model's inputs that it changed in place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from weakref import ref

import torch
from torch import Tensor

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import version_of
from hookcli.probes.shared.dead_units import numbers_of
from hookcli.probes.shared.inventory_part import InventoryPart
from hookcli.tensors import tree
from hookcli.tensors.chunks import bits

BLOCK = 1 << 18
"""Elements that are weighed at once."""


def checksum(x: Tensor) -> Tensor:
    """A sum of the elements' bits, as integers, each times an odd number of its place, modulo 2**64.

    Odd, so that a change of any one element changes it; of its place, so that another order does. Stays on the device.
    """
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    for number, block in enumerate(bits(x.contiguous()).reshape(-1).split(BLOCK)):
        total += (block * _odd(x.device)[: len(block)]).sum() * (2 * number + 1)
    return total


@lru_cache(maxsize=1)
def _odd(device: torch.device) -> Tensor:
    """Odd numbers that have no pattern (the first steps of splitmix64, Steele, Lea and Flood 2014, section 4)."""
    z = torch.arange(BLOCK, device=device) * -0x61C8864680B583EB
    z = (z ^ (z >> 30)) * -0x40A7B892E31B1A47
    return z ^ (z >> 27) | 1


@dataclass(slots=True)
class _Input:
    """An input while the model runs; `total` is the checksum that it came with, None where it has no plain memory."""

    path: str
    tensor: ref[Tensor]
    version: int
    total: Tensor | None


class ChangedInputs(InventoryPart):
    """Rows of kind `changed`: an input, and the module or operator that first wrote into it.

    PyTorch counts changes, which tells the place; those past the counter (through `.data`, or numpy) only change the
    bits, and are the model's.
    """

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        self._inputs: list[_Input] = []
        self._writers: dict[str, str] = {}  # of each input, by its path
        self._totals: list[tuple[str, Tensor, Tensor]] = []

    def enter(self, event: HookEvent) -> None:
        """Take in the inputs as the model's first call begins; later, look whether the code around a call wrote."""
        if event.fqn == "" and event.call == 0:
            self._inputs = [
                _Input(path, ref(x), version_of(x), checksum(x.detach()) if tree.is_plain(x) else None)
                for path, x in tree.arguments(event.args, event.kwargs)
            ]
        elif self._inputs:
            caller = self.session.calls.caller()
            self._look(caller.hooked.fqn if caller else "")

    def leave(self, event: HookEvent) -> None:
        if self._inputs:
            self._look(event.fqn)
        if event.fqn == "" and event.call == 0:
            for given in self._inputs:
                x = given.tensor()
                if given.total is not None and x is not None:
                    self._totals.append((given.path, given.total, checksum(x.detach())))
            self._inputs = []

    def _look(self, fqn: str) -> None:
        for given in self._inputs:
            x = given.tensor()
            if x is not None and version_of(x) != given.version:
                given.version = version_of(x)
                self._writers.setdefault(given.path, fqn)

    def batch_ended(self) -> None:
        """Read the checksums back."""
        totals = iter(numbers_of([total for _, *both in self._totals for total in both]))
        for path, *_ in self._totals:
            if next(totals) != next(totals):
                self._writers.setdefault(path, "")
        self._totals.clear()

    def rows(self) -> list[dict[str, object]]:
        self.batch_ended()
        named = ((tree.keyword(path) or path, fqn) for path, fqn in self._writers.items())
        return [{"kind": "changed", "fqn": fqn, "name": name} for name, fqn in named]

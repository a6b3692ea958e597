"""Probes for repeated runs: what modules return, also of the first item alone, and which draw random numbers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe, StatsProbe, describe
from hookcli.table import Row, columns_named
from hookcli.tensors import tree
from hookcli.tensors.random_state import RandomStates


class FirstItemProbe(StatsProbe):
    """A row per tensor, as modules return: parts first.

    Given the size of a `batch`, only one item is measured, by default the first, of tensors that have the batch in
    dimension 0: a row for each dimension that the batch may be in.
    """

    name = "first"

    def __init__(self, batch: int | None = None, item: int = 0) -> None:
        super().__init__()
        self._batch, self._item = batch, item

    def attach(self, session: HookSession) -> None:
        session.forward(self._see)

    def _see(self, event: HookEvent) -> None:
        for path, x in tree.leaves(event.output if self._batch is None else _unpacked(event.output, self._item)):
            if self._batch is None:
                self.take(describe(event, path), x.detach())
            elif x.dim() and x.size(0) == self._batch:
                for first in single_items(x.detach(), self._batch, self._item):
                    self.take(describe(event, path), first)


def _unpacked(output: object, item: int) -> object:
    """The output with tensors as long as this item in place of packed sequences, which mix steps of all items."""
    if isinstance(output, PackedSequence):
        items, lengths = pad_packed_sequence(output, batch_first=True)
        return items[:, : int(lengths[item])]
    return tuple(_unpacked(part, item) for part in output) if type(output) is tuple else output


def single_items(x: Tensor, batch: int, item: int) -> list[Tensor]:
    """One item along each dimension of the batch's size: the batch need not be in dimension 0.

    The hidden state of an nn.GRU has its layers there, of which there may be as many as items.
    """
    return [x.select(dim, item) for dim in range(x.dim()) if x.size(dim) == batch]


class RandomDrawsProbe(Probe):
    """A row per module whose own code, not its parts', changed the state of a generator.

    `states` reads the states of the generators in question; it is called twice per call of a module.
    """

    name = "draws"
    columns = columns_named("fqn")

    def __init__(self, states: Callable[[], RandomStates]) -> None:
        self._states = states
        self._open: list[str] = []
        self._drawing: dict[str, None] = {}

    def attach(self, session: HookSession) -> None:
        self._last = self._states()
        session.forward_pre(self._enter)
        session.forward(self._leave)

    def _enter(self, event: HookEvent) -> None:
        self._look()
        self._open.append(event.fqn)

    def _leave(self, event: HookEvent) -> None:
        self._look()
        self._open.pop()

    def _look(self) -> None:
        states = self._states()
        if self._open and not states.same(self._last):
            self._drawing[self._open[-1]] = None
        self._last = states

    def rows(self) -> list[Row]:
        return [Row({"fqn": fqn}) for fqn in self._drawing]

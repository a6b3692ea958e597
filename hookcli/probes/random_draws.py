"""A probe for the modules that draw random numbers."""

from __future__ import annotations

from collections.abc import Callable

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.table import Row, columns_named
from hookcli.tensors.random_state import RandomStates


class RandomDrawsProbe(Probe):
    """A row per module whose own code, not that of its parts, changed the state of a generator.

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

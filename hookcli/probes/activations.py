"""Statistics of what each module returns."""

from __future__ import annotations

from hookcli import tree
from hookcli.hooks import HookEvent, HookSession
from hookcli.probes.base import StatsProbe, by_index, describe
from hookcli.report import Row


class ActivationsProbe(StatsProbe):
    """A row per tensor that a module returned, per call."""

    name = "activations"

    def attach(self, session: HookSession) -> None:
        self.session = session
        session.forward(self._see)

    def _see(self, event: HookEvent) -> None:
        found = False
        for path, tensor in tree.leaves(event.output):
            found = True
            self.take(describe(event, path), tensor)
        if not found:
            self.skip(event.fqn, f"returned no tensor that can be seen ({type(event.output).__name__})")

    def rows(self) -> list[Row]:
        return by_index(super().rows())

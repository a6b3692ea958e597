"""Statistics of the first item of a batch alone, to find where it begins to depend on the others."""

from __future__ import annotations

from hookcli import tree
from hookcli.hooks import HookEvent, HookSession
from hookcli.probes.base import StatsProbe, describe


class FirstItemProbe(StatsProbe):
    """A row per tensor that a module returned and that has the batch in dimension 0, as modules return: parts first."""

    name = "first"

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = batch

    def attach(self, session: HookSession) -> None:
        session.forward(self._see)

    def _see(self, event: HookEvent) -> None:
        for path, x in tree.leaves(event.output):
            if x.dim() and x.size(0) == self._batch:
                self.take(describe(event, path), x.detach()[0])

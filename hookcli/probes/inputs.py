"""Statistics of the tensors that each module receives."""

from __future__ import annotations

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import StatsProbe, by_index
from hookcli.report import Row


class InputsProbe(StatsProbe):
    """A row per tensor that a module received, per call, taken before the module runs (it may overwrite its input)."""

    name = "inputs"

    def attach(self, session: HookSession) -> None:
        """Register forward pre-hooks."""
        self.session = session
        session.forward_pre(self._see)

    def _see(self, event: HookEvent) -> None:
        received = self.unseen.arguments(event.fqn, event.args, event.kwargs)
        self.take_all(event, received, "received no tensor that can be seen")

    def rows(self) -> list[Row]:
        """Return the rows in the order in which modules were entered."""
        return by_index(super().rows())

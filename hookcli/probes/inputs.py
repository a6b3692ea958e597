"""Statistics of the tensors that each module receives."""

from __future__ import annotations

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import CallStatsProbe


class InputsProbe(CallStatsProbe):
    """A row per tensor that a module received, per call, taken before the module runs (it may overwrite its input)."""

    name = "inputs"
    tensors = "input"

    def attach(self, session: HookSession) -> None:
        self.session = session
        session.forward_pre(self._see)

    def _see(self, event: HookEvent) -> None:
        received = self.unseen.arguments(event.fqn, event.args, event.kwargs)
        self.take_all(event, received, "received no tensor that can be seen")

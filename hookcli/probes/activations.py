"""Statistics of the tensors that each module returns, and each operator."""

from __future__ import annotations

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import CallStatsProbe


class ActivationsProbe(CallStatsProbe):
    """A row per tensor that a module or operator returned, per call."""

    name = "activations"
    tensors = "output"
    operators = True

    def attach(self, session: HookSession) -> None:
        self.session = session
        session.forward(self._see)

    def _see(self, event: HookEvent) -> None:
        nothing = f"returned no tensor that can be seen ({type(event.output).__name__})"
        self.take_all(event, self.unseen.leaves(event.fqn, event.output), nothing)

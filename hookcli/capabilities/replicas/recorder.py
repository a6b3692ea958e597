"""The part of replicas in a recorded run: a checksum of each parameter, after each recorded step of several ranks."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.capabilities.replicas.digest import weights_digest
from hookcli.record.observe.parts import BegunStep, RecorderPart, StepPart
from hookcli.system.torchrun import joined_world
from hookcli.table import Report
from hookcli.table.meta import Meta


class Recorder(RecorderPart):
    """Takes part in each training step whose updates are recorded."""

    def begin_step(self, step: BegunStep) -> StepPart | None:
        """A step begins whose weights other ranks may hold, too."""
        return StepOfReplicas(step) if step.training and "updates" in step.probes else None


class StepOfReplicas(StepPart):
    """Takes the checksums after a step."""

    def __init__(self, step: BegunStep) -> None:
        self._step = step

    def report(self, meta: Meta, group: Sequence[int]) -> Report | None:
        """A row for each parameter that this rank holds whole; waits for an accelerator."""
        if not meta["complete"] or joined_world().size == 1:
            return None
        step = self._step
        report, self.digest = weights_digest(step.model, step.module, step.name, meta, group)
        return report

"""What the steps of optimizers do to the windows that are open, and to the counts of their models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch.optim.optimizer import Optimizer

from hookcli.record.observe.clocks import Clocks, Rounds, ids
from hookcli.record.observe.models import Models
from hookcli.record.observe.plan import Plan
from hookcli.record.observe.unseen import capturing
from hookcli.record.observe.updates import Snapshot
from hookcli.record.observe.window import OpenWindow, Place
from hookcli.record.observe.windows import Windows
from hookcli.report.formatting import counted


class Steps:
    """Told of each step's begin, and of its end, unless an exception comes first."""

    def __init__(self, plan: Plan, clocks: Clocks, models: Models, windows: Windows) -> None:
        self._plan = plan
        self._clocks = clocks
        self._models = models
        self._windows = windows
        self.rounds = Rounds()
        self._snapshots: dict[int, Snapshot] = {}  # by optimizer, while it steps

    def begins(self, optimizer: Optimizer, closure: bool) -> Callable[[], None] | None:
        """What is returned is to be called once the step is over or has failed; None where it does not matter."""
        self._clocks.add(optimizer)
        self._snapshots.pop(id(optimizer), None)  # of a step that an exception ended
        windows = self._windows.of(optimizer)
        for window in windows:
            window.scales.stepping(optimizer)
            if not closure:
                window.take_gradients(optimizer)
                self._windows.look(window)
        if not (windows or self._keeps(optimizer)) or capturing():
            return None
        snapshot = Snapshot(optimizer, closure, copies="updates" in self._plan.probes)
        self._snapshots[id(optimizer)] = snapshot
        return partial(self._ended, optimizer, snapshot)

    def _keeps(self, optimizer: Optimizer) -> bool:
        """Whether its next step may be looked at without a window: of models not seen yet, it is its own count."""
        numbers = [watched.step_of(optimizer) for watched in self._models.of(optimizer)]
        return any(map(self._plan.keeps, numbers or [self._clocks.steps(optimizer)]))

    def _ended(self, optimizer: Optimizer, snapshot: Snapshot) -> None:
        """If it is not over, it failed."""
        if self._snapshots.get(id(optimizer)) is not snapshot:
            return
        del self._snapshots[id(optimizer)]
        for window in self._windows.of(optimizer):
            if not window.busy:
                window.left(_FAILED)
                self._windows.close(window)

    def over(self, optimizer: Optimizer) -> None:
        """It has changed the parameters."""
        snapshot = self._snapshots.pop(id(optimizer), None)
        windows = self._windows.of(optimizer)
        for window in windows:
            if snapshot is not None:
                if snapshot.closure:
                    window.take_gradients(optimizer)
                window.take_updates(snapshot)
        models = self._models.of(optimizer)
        for watched in models:
            watched.training.lap()
            watched.stepped(optimizer)
        self._clocks.tick(optimizer)
        if models or not self._models.narrowed:
            self.rounds.stepped(optimizer)
        notes = self._of_no_model(optimizer) if windows else {}
        for window in windows:
            window.notes |= notes
            self._stepped(window, optimizer)
        if snapshot is not None:
            self._look_at_blind(optimizer, snapshot)

    def _of_no_model(self, optimizer: Optimizer) -> dict[str, None]:
        """Says how many of its parameters no model has that ran: a temperature that the loss is made with.

        Not where models may have run that nobody asked for.
        """
        if self._models.narrowed:
            return {}
        models = [module for watched in self._models.of(optimizer) if (module := watched.module) is not None]
        left = len(ids(optimizer).difference(*({id(p) for p in module.parameters()} for module in models)))
        told = (
            f"{type(optimizer).__name__} has {counted(left, 'parameter')} of no module that has run so far, not shown"
        )
        return {told: None} if left else {}

    def _look_at_blind(self, optimizer: Optimizer, snapshot: Snapshot) -> None:
        """Models whose forward can't be seen: what became of their parameters."""
        for watched in self._models.blind(optimizer):
            step = watched.step() - 1
            place = Place("train", step, None, self._plan.keeps(step))
            if place.kept and (window := self._windows.open(watched, place)) is not None:
                window.forwards = 0
                window.take_gradients(optimizer)
                window.take_updates(snapshot)
                self._windows.end_step(window)

    def scaler_stepped(self, optimizer: Optimizer) -> None:
        """A GradScaler has let it step, or has left the step out."""
        for watched in self._models.of(optimizer):
            watched.training.lap()
        for window in self._windows.of(optimizer):
            if id(optimizer) not in window.stepped:
                window.scales.left_out()
                window.take_gradients(optimizer)
                self._stepped(window, optimizer)

    def _stepped(self, window: OpenWindow, optimizer: Optimizer) -> None:
        """The window's step is over when all of the model's optimizers have made theirs."""
        window.stepped.add(id(optimizer))
        if all(id(other) in window.stepped for other in window.watched.optimizers()):
            self._windows.end_step(window)


_FAILED = "the optimizer's step failed: what came before is here"

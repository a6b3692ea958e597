"""Looks at a program that runs as it is, and hands on what it sees a window at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli import tree
from hookcli.errors import UsageError
from hookcli.hooks.globally import GlobalHooks
from hookcli.observe.clocks import Clocks, ids
from hookcli.observe.guard import Guard
from hookcli.observe.models import Models, Watched
from hookcli.observe.passes import Passes
from hookcli.observe.plan import Plan
from hookcli.observe.scales import LEFT_OUT
from hookcli.observe.unseen import capturing
from hookcli.observe.updates import Snapshot
from hookcli.observe.window import OpenWindow, Place
from hookcli.observe.windows import Sink, Windows
from hookcli.present import counted


class Observer:
    """A Watcher: on between `start` and `stop`. `only`: which outermost modules count."""

    def __init__(self, plan: Plan, sink: Sink, only: Callable[[nn.Module], bool] | None = None) -> None:
        self.plan = plan
        self.clocks = Clocks()
        self.models = Models(self.clocks, only)
        self._sink = sink
        self._windows = Windows(plan, sink, self.safe)
        self._passes = Passes(self._windows)
        self._hooks = GlobalHooks(self)
        self._guard = Guard(self._give_up)  # whatever fails, the program that is looked at must not fail by it
        self._on = self._active = False
        self._calls: dict[int, tuple[Watched, OpenWindow | None]] = {}  # by thread
        self._snapshots: dict[int, Snapshot] = {}  # by optimizer, while it steps

    def start(self) -> Self:
        """From now on."""
        self.clocks.find()
        self._hooks.__enter__()
        self._on = self._active = True
        return self

    def stop(self) -> bool:
        """No more. Windows that are open are closed and handed on. Returns whether it was on."""
        if not self._on:
            return False
        self._on = False
        self._hooks.__exit__()
        if self._active:
            with self._guard:
                self._abandon_failed()
                for window in self._windows:
                    self._windows.leave(window)
        self._active = False
        self._windows.discard()
        return True

    # What may fail is ours alone.

    def safe(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a hook that never raises, and that does nothing once something has failed."""

        def hook(*args: Any, **kwargs: Any) -> Any:
            if self._active:
                with self._guard:
                    return function(*args, **kwargs)
            return None

        return hook

    def _give_up(self, error: Exception) -> None:
        self._active = False
        self._sink.gave_up(error)
        if error.__context__ is None:  # else an exception of the program may be on its way through these hooks
            self._windows.discard()

    # Forwards.

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """See Watcher."""
        if not self._active:
            self._windows.discard()
            return
        with self._guard:
            self._abandon_failed()
            self._windows.close_forlorn()
            watched = self.models.find(module)
            if watched is not None:
                self._enter(watched, module, args)

    def _enter(self, watched: Watched, module: nn.Module, args: tuple[Any, ...]) -> None:
        grad = torch.is_grad_enabled()
        step = watched.step()
        forward = watched.count(grad=grad)
        try:
            window = self._windows.find(watched, step, forward, grad=grad)
        except UsageError as error:  # TorchScript
            watched.blind = str(error)
            watched.note(str(error))
            window = None
        self._calls[threading.get_ident()] = watched, window
        (watched.training if grad else watched.inference).start()
        if window is not None:
            window.begin(module, args)

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """See Watcher."""
        watched, window = self._calls.pop(threading.get_ident(), (None, None))
        if watched is None or not self._active:
            return
        with self._guard:
            if window is not None:
                window.end(args, kwargs, output)
                self._windows.look(window)
            self._left(watched, window, output)
        self._windows.stop_if_asked()

    def _left(self, watched: Watched, window: OpenWindow | None, output: Any) -> None:
        """Of a model without an optimizer, and without grad, each forward is a step."""
        grad = torch.is_grad_enabled()
        if grad and watched.optimizers():
            return
        stopwatch = watched.training if grad else watched.inference
        stopwatch.lap()
        if window is not None:
            window.seconds = stopwatch.take()
            if not (grad and any(x.requires_grad for _, x in tree.leaves(output))):
                self._windows.close(window)  # no gradient can come

    def failed(self, thread: int) -> None:
        """See Watcher. The program may be short of memory, of which the model that failed has some."""
        if self._active:
            with self._guard:
                self._abandon_failed(thread)

    def _abandon_failed(self, thread: int | None = None) -> None:
        """Of the forward that ended last in a thread, where an exception ended it, hooks have stayed until now."""
        _, window = self._calls.pop(threading.get_ident() if thread is None else thread, (None, None))
        if window is not None:
            window.abandon()
            window.left(_FORWARD_FAILED)
            self._windows.close(window)

    # Backward.

    def backward_begins(self, tensors: Any) -> None:
        """See Watcher."""
        if self._active and self._windows:
            with self._guard:
                self._passes.begin(tensors, closure=any(s.closure for s in self._snapshots.values()))

    def backward_over(self) -> None:
        """See Watcher."""
        if self._active:
            with self._guard:
                self._passes.end()
            self._windows.stop_if_asked()

    def scaled(self, scaler: Any, losses: Any, made: Any) -> None:
        """See Watcher."""
        if self._active and self._windows:
            with self._guard:
                self._passes.scaled(scaler, losses, made)

    # Optimizers.

    def made(self, optimizer: Optimizer) -> None:
        """See Watcher."""
        with self._guard:
            self.clocks.changed(optimizer)

    def compiled(self, module: nn.Module) -> None:
        """See Watcher."""
        with self._guard:
            self.models.compiled(module)

    def forked(self) -> None:
        """See Watcher. Another thread may have held the lock, which nobody here releases."""
        self._on = self._active = False

    def step_begins(self, optimizer: Optimizer, closure: bool) -> Callable[[], object] | None:
        """See Watcher."""
        if not self._active:
            return None
        ended = None
        with self._guard:
            self.clocks.add(optimizer)
            self._snapshots.pop(id(optimizer), None)  # of a step that an exception ended
            windows = self._windows.of(optimizer)
            for window in windows:
                window.scales.stepping(optimizer)
                if not closure:
                    window.take_gradients(optimizer)
                    self._windows.look(window)
            if (windows or self._keeps(optimizer)) and not capturing():
                copies = "updates" in self.plan.probes
                snapshot = self._snapshots[id(optimizer)] = Snapshot(optimizer, closure, copies=copies)
                ended = partial(self._step_ended, optimizer, snapshot)
        self._windows.stop_if_asked()
        return ended

    def _step_ended(self, optimizer: Optimizer, snapshot: Snapshot) -> None:
        """If it is not over, it failed."""
        if not self._active or self._snapshots.get(id(optimizer)) is not snapshot:
            return
        with self._guard:
            del self._snapshots[id(optimizer)]
            for window in self._windows.of(optimizer):
                if not window.busy:
                    window.left(_STEP_FAILED)
                    self._windows.close(window)

    def _keeps(self, optimizer: Optimizer) -> bool:
        """Whether its next step may be looked at without a window: of models not seen yet, it is its own count."""
        numbers = [watched.step_of(optimizer) for watched in self.models.of(optimizer)]
        return any(map(self.plan.keeps, numbers or [self.clocks.steps(optimizer)]))

    def step_over(self, optimizer: Optimizer) -> None:
        """See Watcher."""
        if not self._active:
            return
        with self._guard:
            snapshot = self._snapshots.pop(id(optimizer), None)
            windows = self._windows.of(optimizer)
            for window in windows:
                if snapshot is not None:
                    if snapshot.closure:
                        window.take_gradients(optimizer)
                    window.take_updates(snapshot)
            for watched in self.models.of(optimizer):
                watched.training.lap()
                watched.stepped(optimizer)
            self.clocks.tick(optimizer)
            for window in windows:
                window.notes |= self._alone(optimizer)
                self._stepped(window, optimizer)
            if snapshot is not None:
                self._look_at_blind(optimizer, snapshot)

    def _alone(self, optimizer: Optimizer) -> dict[str, None]:
        """Says how many of its parameters no model has that ran: a temperature that the loss is made with."""
        models = [module for watched in self.models.of(optimizer) if (module := watched.module) is not None]
        left = len(ids(optimizer).difference(*({id(p) for p in module.parameters()} for module in models)))
        return (
            {f"of {type(optimizer).__name__} {counted(left, 'parameter')} in no module that ran: not shown": None}
            if left
            else {}
        )

    def _look_at_blind(self, optimizer: Optimizer, snapshot: Snapshot) -> None:
        """Models whose forward can't be seen: what became of their parameters."""
        for watched in self.models.blind(optimizer):
            step = watched.step() - 1
            place = Place("train", step, None, self.plan.keeps(step))
            if place.kept and (window := self._windows.open(watched, place)) is not None:
                window.forwards = 0
                window.take_gradients(optimizer)
                window.take_updates(snapshot)
                self._windows.end_step(window)

    def scaler_stepped(self, optimizer: Optimizer) -> None:
        """See Watcher."""
        if not self._active:
            return
        with self._guard:
            for watched in self.models.of(optimizer):
                watched.training.lap()
            for window in self._windows.of(optimizer):
                if id(optimizer) not in window.stepped:
                    window.take_gradients(optimizer)
                    window.notes[LEFT_OUT] = None
                    self._stepped(window, optimizer)

    def _stepped(self, window: OpenWindow, optimizer: Optimizer) -> None:
        """The window's step is over when all of the model's optimizers have made theirs."""
        window.stepped.add(id(optimizer))
        if all(id(other) in window.stepped for other in window.watched.optimizers()):
            self._windows.end_step(window)


_FORWARD_FAILED = "a forward failed: what came before is here"
_STEP_FAILED = "the optimizer's step failed: what came before is here"

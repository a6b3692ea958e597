"""Looks at a program that runs as it is, and hands on what it sees a window at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, Self

import torch
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from hookcli import tree
from hookcli.errors import UsageError
from hookcli.hooks.globally import GlobalHooks
from hookcli.observe.clocks import Clocks
from hookcli.observe.models import Models, Watched
from hookcli.observe.plan import Plan
from hookcli.observe.search import Search, StopProgram
from hookcli.observe.unseen import unobservable
from hookcli.observe.updates import Snapshot
from hookcli.observe.window import MOST_FORWARDS, OpenWindow, Place
from hookcli.runs.record import Bad, Window

# Windows that wait for a backward pass or a step that may never come keep their models alive: no more than these.
_MOST_OPEN = 8


class Sink(Protocol):
    """Where it goes. What it raises ends the observation, not the program."""

    def window(self, window: Window) -> None:
        """A window is closed."""

    def bad(self, bad: Bad) -> None:
        """The first value that is not finite."""

    def gave_up(self, error: Exception) -> None:
        """Something of ours failed: nothing is looked at any more. Must not raise."""


class Observer:
    """A Watcher: on between `start` and `stop`. `only`: which outermost modules count."""

    def __init__(self, plan: Plan, sink: Sink, only: Callable[[nn.Module], bool] | None = None) -> None:
        self.plan = plan
        self.clocks = Clocks()
        self.models = Models(self.clocks, only)
        self._sink = sink
        self._search = Search(plan)
        self._hooks = GlobalHooks(self)
        self._lock = threading.RLock()
        self._on = self._active = False
        self._open: list[OpenWindow] = []
        self._calls: dict[int, tuple[Watched, OpenWindow | None]] = {}  # by thread
        self._snapshots: dict[int, Snapshot] = {}  # by optimizer, while it steps
        self._backward: dict[int, tuple[Any, list[tuple[OpenWindow, int]]]] = {}  # by thread
        self._failed: list[OpenWindow] = []
        self._scaled: Any = WeakTensorKeyDictionary()  # losses that a GradScaler made -> it, and what of

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
            with self._guarded():
                self._abandon_failed()
                for window in list(self._open):
                    self._close(window)
        self._active = False
        self._take_off()
        return True

    # What may fail is ours alone.

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except Exception as error:  # whatever it is, the program that is looked at must not fail by it
            self._give_up(error)

    def safe(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a hook that never raises, and that does nothing once something has failed."""

        def hook(*args: Any, **kwargs: Any) -> Any:
            if self._active:
                with self._guarded():
                    return function(*args, **kwargs)
            return None

        return hook

    def _give_up(self, error: Exception) -> None:
        self._active = False
        self._sink.gave_up(error)
        if error.__context__ is None:  # else an exception of the program may be on its way through these hooks
            self._take_off()

    def _take_off(self) -> None:
        while self._open:
            self._open.pop().session.__exit__(None, None, None)

    # Forwards.

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """See Watcher."""
        if not self._active:
            self._take_off()
            return
        with self._guarded():
            self._abandon_failed()
            for window in [window for window in self._open if not window.busy and window.forlorn]:
                self._close(window)
            watched = self.models.find(module)
            if watched is not None:
                self._enter(watched, module, args)

    def _enter(self, watched: Watched, module: nn.Module, args: tuple[Any, ...]) -> None:
        grad = torch.is_grad_enabled()
        step = watched.step()
        forward = watched.count(grad=grad)
        try:
            window = self._window(watched, step, forward, grad)
        except UsageError as error:  # TorchScript
            watched.blind = str(error)
            watched.note(str(error))
            window = None
        self._calls[threading.get_ident()] = watched, window
        (watched.training if grad else watched.inference).start()
        if window is not None:
            window.begin(module, args)

    def _window(self, watched: Watched, step: int, forward: int, grad: bool) -> OpenWindow | None:
        """The window that this forward belongs to; None where it is not looked at."""
        window = watched.window
        if grad and window is not None:
            if window.step == step and not window.stepped and watched.optimizers():
                window.forwards += 1
                return window if window.looked_at < MOST_FORWARDS and not window.busy else None
            self._end_step(window)
        place = self._place(watched, step, forward, grad)
        if not (place.kept or (self._search.on and self.plan.covers(step))) or watched.blind:
            return None
        if reason := unobservable():
            watched.note(reason)
            return None
        model = watched.module
        if model is None:
            return None
        return self._opened(OpenWindow(watched, model, self.plan, self.safe, place))

    def _place(self, watched: Watched, step: int, forward: int, grad: bool) -> Place:
        """Forwards without grad between the steps of a training, such as a validation's, have no steps to go by."""
        if grad or not watched.optimizers():
            return Place("train" if grad else "no_grad", step, None, self.plan.keeps(step))
        return Place("no_grad", step, forward, self.plan.covers(step) and watched.due(self.plan.every))

    def _opened(self, window: OpenWindow) -> OpenWindow:
        if window.phase == "train":
            window.watched.window = window
        while len(self._open) >= _MOST_OPEN:
            self._close(self._open[0])
        self._open.append(window)
        return window

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """See Watcher."""
        watched, window = self._calls.pop(threading.get_ident(), (None, None))
        if watched is None or not self._active:
            return
        with self._guarded():
            if window is not None:
                window.end(args, kwargs)
                self._look_for_bad(window)
            self._left(watched, window, output)
        self._stop_if_asked()

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
                self._close(window)  # no gradient can come

    def failed(self, module: nn.Module) -> None:
        """See Watcher. Hooks stay until the next call."""
        _, window = self._calls.pop(threading.get_ident(), (None, None))
        if window is not None:
            self._failed.append(window)

    def _abandon_failed(self) -> None:
        """Forwards that an exception ended; one that an interrupt ended was not told."""
        _, interrupted = self._calls.pop(threading.get_ident(), (None, None))
        for window in [*self._failed, *([interrupted] if interrupted else [])]:
            window.abandon()
        self._failed.clear()

    # Backward.

    def backward_begins(self, tensors: Any) -> None:
        """See Watcher."""
        if not (self._active and self._open):
            return
        thread = threading.get_ident()
        with self._guarded():
            windows = [window for window in self._open if window.session.thread == thread and not window.busy]
            self._backward[thread] = tensors, [(window, window.session.arrived) for window in windows]
            for window in windows:
                window.session.modules.attach()  # checkpointed modules run again inside

    def backward_over(self) -> None:
        """See Watcher."""
        tensors, windows = self._backward.pop(threading.get_ident(), (None, []))
        if not (self._active and windows):
            return
        with self._guarded():
            for window, arrived in windows:
                window.session.modules.detach()
                if window.session.arrived > arrived or not window.sees_gradients:
                    self._after_backward(window, tensors)
        self._stop_if_asked()

    def _after_backward(self, window: OpenWindow, tensors: Any) -> None:
        made = (self._scaled[x] for _, x in tree.leaves(tensors) if x in self._scaled)
        scaler, loss = next(made, (None, tensors))
        window.differentiated(loss, scaler)
        self._look_for_bad(window)
        if not window.watched.optimizers():
            window.take_gradients()
            self._close(window)

    def scaled(self, scaler: Any, losses: Any, made: Any) -> None:
        """See Watcher."""
        if self._active and self._open:
            with self._guarded():
                for (_, loss), (_, scaled) in zip(tree.leaves(losses), tree.leaves(made), strict=False):
                    self._scaled[scaled] = scaler, loss.detach().clone()

    # Optimizers.

    def made(self, optimizer: Optimizer) -> None:
        """See Watcher."""
        with self._guarded():
            self.clocks.add(optimizer)

    def compiled(self, module: nn.Module) -> None:
        """See Watcher."""
        with self._guarded():
            self.models.compiled(module)

    def forked(self) -> None:
        """See Watcher. Another thread may have held the lock, which nobody here releases."""
        self._on = self._active = False

    def step_begins(self, optimizer: Optimizer, closure: bool) -> None:
        """See Watcher."""
        if not self._active:
            return
        with self._guarded():
            self.clocks.add(optimizer)
            self._snapshots.pop(id(optimizer), None)  # of a step that an exception ended
            windows = self._windows_of(optimizer)
            for window in windows:
                if not closure:
                    window.take_gradients(optimizer)
                    self._look_for_bad(window)
            if windows or self.plan.keeps(self.clocks.steps(optimizer)):
                self._snapshots[id(optimizer)] = Snapshot(optimizer, closure)
        self._stop_if_asked()

    def step_over(self, optimizer: Optimizer) -> None:
        """See Watcher."""
        if not self._active:
            return
        with self._guarded():
            self.clocks.tick(optimizer)
            snapshot = self._snapshots.pop(id(optimizer), None)
            windows = self._windows_of(optimizer)
            for window in windows:
                if snapshot is not None:
                    if snapshot.closure:
                        window.take_gradients(optimizer)
                    window.take_updates(snapshot)
            for watched in self.models.of(optimizer):
                watched.training.lap()
                watched.tally.steps = watched.step()
            for window in windows:
                self._stepped(window, optimizer)
            if snapshot is not None:
                self._look_at_blind(optimizer, snapshot)

    def _look_at_blind(self, optimizer: Optimizer, snapshot: Snapshot) -> None:
        """Models whose forward can't be seen: what became of their parameters."""
        step = self.clocks.steps(optimizer) - 1
        for watched in self.models.blind(optimizer):
            model = watched.module
            if model is not None and self.plan.keeps(step):
                window = OpenWindow(watched, model, self.plan, self.safe, Place("train", step, None, True))
                window.forwards = 0
                window.take_gradients(optimizer)
                window.take_updates(snapshot)
                self._end_step(window)

    def scaler_stepped(self, optimizer: Optimizer) -> None:
        """See Watcher."""
        if not self._active:
            return
        with self._guarded():
            for watched in self.models.of(optimizer):
                watched.training.lap()
            for window in self._windows_of(optimizer):
                if id(optimizer) not in window.stepped:
                    window.notes[_SKIPPED] = None
                    self._stepped(window, optimizer)

    def _stepped(self, window: OpenWindow, optimizer: Optimizer) -> None:
        """The window's step is over when all of the model's optimizers have made theirs."""
        window.stepped.add(id(optimizer))
        if all(id(other) in window.stepped for other in window.watched.optimizers()):
            self._end_step(window)

    def _windows_of(self, optimizer: Optimizer) -> list[OpenWindow]:
        return [w for w in self._open if any(optimizer is other for other in w.watched.optimizers())]

    # Windows.

    def _end_step(self, window: OpenWindow) -> None:
        if window.seconds is None:
            window.seconds = window.watched.training.take()
        self._close(window)

    def _close(self, window: OpenWindow) -> None:
        self._drop(window)
        self._look_for_bad(window)
        watched = window.watched
        if not window.kept:
            window.discard()
            return
        record = window.close()
        watched.tally.windows += 1
        stopwatch = watched.training if window.phase == "train" else watched.inference
        self._sink.window(replace(record, plain_seconds=stopwatch.mean()))

    def _drop(self, window: OpenWindow) -> None:
        self._open = [other for other in self._open if other is not window]
        if window.watched.window is window:
            window.watched.window = None

    # The first bad value.

    def _look_for_bad(self, window: OpenWindow) -> None:
        if bad := self._search.look(window):
            self._sink.bad(bad)

    def _stop_if_asked(self) -> None:
        if self._search.stops:
            self._search.stops = False
            raise StopProgram(1)


_SKIPPED = "the GradScaler left out a step: gradients overflowed"

"""The windows that are open: each from its first forward until it is handed on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from torch.optim.optimizer import Optimizer

from hookcli.hooks.core import CallbackGuard
from hookcli.record.file.record import Bad, Window
from hookcli.record.observe.models import Watched
from hookcli.record.observe.plan import Plan
from hookcli.record.observe.search import Search
from hookcli.record.observe.unseen import unobservable
from hookcli.record.observe.window import MOST_FORWARDS, OpenWindow, Place

# Windows that wait for a backward pass or a step that may never come keep their models alive: no more than these.
_MOST_OPEN = 8


class Sink(Protocol):
    """Where it goes. What it raises ends the observation, not the program; an OSError, where it takes no more, ends
    the looking alone: the program's steps and forwards are counted on."""

    def window(self, window: Window) -> None:
        """A window is closed."""

    def bad(self, bad: Bad) -> None:
        """The first value that is not finite."""

    def gave_up(self, error: Exception) -> None:
        """Something of ours failed: nothing is looked at any more. Must not raise."""


class Windows:
    """Opens them, and hands them on to the sink as they close. `safe` is laid around their hooks."""

    def __init__(self, plan: Plan, sink: Sink, safe: CallbackGuard) -> None:
        self._plan = plan
        self._sink = sink
        self._safe = safe
        self._search = Search(plan)
        self._open: list[OpenWindow] = []

    def __iter__(self) -> Iterator[OpenWindow]:
        return iter(list(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def of(self, optimizer: Optimizer) -> list[OpenWindow]:
        """Those of models that have parameters in it."""
        return [w for w in self._open if any(optimizer is other for other in w.watched.optimizers())]

    def idle(self) -> list[OpenWindow]:
        """Those whose forwards were in this thread, and are over."""
        thread = threading.get_ident()
        return [window for window in self._open if window.session.modules.thread == thread and not window.busy]

    # A forward begins.

    def find(self, watched: Watched, step: int, forward: int, *, grad: bool) -> OpenWindow | None:
        """The window that this forward belongs to, which may be a new one; None where it is not looked at."""
        window = watched.window
        if grad and window is not None:
            if window.step == step and not window.stepped and watched.optimizers():
                window.forwards += 1
                return window if window.looked_at < MOST_FORWARDS and not window.busy else None
            self.end_step(window)
        place = self._place(watched, step, forward, grad)
        if not (place.kept or (self._search.on and self._plan.covers(step))) or watched.blind:
            return None
        if reason := unobservable():
            watched.note(reason)
            return None
        return self.open(watched, place)

    def _place(self, watched: Watched, step: int, forward: int, grad: bool) -> Place:
        """Forwards without grad between the steps of a training, such as a validation's, have no steps to go by."""
        if grad or not watched.optimizers():
            return Place("train" if grad else "no_grad", step, None, self._plan.keeps(step))
        return Place("no_grad", step, forward, self._plan.covers(step) and watched.due(self._plan.every))

    def open(self, watched: Watched, place: Place) -> OpenWindow | None:
        """A new one; None where the model is gone."""
        model = watched.module
        if model is None:
            return None
        window = OpenWindow(watched, model, self._plan, self._safe, place)
        if window.phase == "train":
            watched.window = window
        idle = [other for other in self._open if not other.busy]
        for other in idle[: max(0, len(self._open) + 1 - _MOST_OPEN)]:
            self.leave(other)
        self._open.append(window)
        return window

    # It is over.

    def end_step(self, window: OpenWindow) -> None:
        """The step that it is of has ended."""
        if window.seconds is None:
            window.seconds = window.watched.training.take()
        self.close(window)

    def close(self, window: OpenWindow) -> None:
        """Hand it on, unless another thread has done so."""
        if window not in self._open:
            return
        self._open.remove(window)
        watched = window.watched
        if watched.window is window:
            watched.window = None
        self.look(window)
        if not window.kept or self._plan.ended.is_set():
            window.discard()
            return
        record = window.close()
        stopwatch = watched.training if window.phase == "train" else watched.inference
        with self._ending():
            self._sink.window(replace(record, plain_seconds=stopwatch.mean()))
            watched.tally.windows += 1

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Look no more where the sink takes no more."""
        try:
            yield
        except OSError as error:
            self._plan.ended.set()
            self._sink.gave_up(error)

    def leave(self, window: OpenWindow) -> None:
        """Hand it on as it is: of a model with an optimizer, which may be gone, the step may never come."""
        if window.watched.trained:
            window.left()
        self.close(window)

    def close_forlorn(self) -> None:
        """Those whose model's gradients can't come any more."""
        for window in self:
            if not window.busy and window.forlorn:
                self.close(window)

    def discard(self) -> None:
        """Take all their hooks off, and tell nothing."""
        while self._open:
            self._open.pop().discard()

    # The first bad value.

    def look(self, window: OpenWindow) -> None:
        """Search what is new in it."""
        if self._plan.ended.is_set():
            return
        if bad := self._search.look(window):
            window.kept = True
            with self._ending():
                self._sink.bad(bad)

    def stop_if_asked(self) -> None:
        """Raises StopProgram where the first bad value was found, and is to be the last."""
        self._search.stop_if_asked()

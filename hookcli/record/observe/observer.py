"""Looks at a program that runs as it is, and hands on what it sees a window at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli.errors import UsageError
from hookcli.hooks.program.global_hooks import GlobalHooks
from hookcli.record.observe.clocks import Clocks
from hookcli.record.observe.guard import Guard
from hookcli.record.observe.models import Models, Watched
from hookcli.record.observe.passes import Passes
from hookcli.record.observe.plan import Plan
from hookcli.record.observe.steps import Steps
from hookcli.record.observe.window import OpenWindow
from hookcli.record.observe.windows import Sink, Windows
from hookcli.tensors import tree


class Observer:
    """A Watcher: on between `start` and `stop`. `only`: which outermost modules count."""

    def __init__(self, plan: Plan, sink: Sink, only: Callable[[nn.Module], bool] | None = None) -> None:
        self.plan = plan
        self.clocks = Clocks()
        self.models = Models(self.clocks, only)
        self._sink = sink
        self._windows = Windows(plan, sink, self.safe)
        self._passes = Passes(self._windows)
        self._steps = Steps(plan, self.clocks, self.models, self._windows)
        self._hooks = GlobalHooks(self)
        self._lock = threading.RLock()
        self._guard = Guard(self._give_up)  # whatever fails, the program that is looked at must not fail by it
        self._on = self._active = False
        self._calls: dict[int, tuple[Watched, OpenWindow | None]] = {}  # by thread

    def start(self) -> Self:
        """From now on."""
        self.clocks.find()
        self._hooks.__enter__()
        self._on = self._active = True
        return self

    @property
    def program_steps(self) -> int:
        """How many steps the program has made, whichever of its models and optimizers they were of."""
        return self._steps.rounds.count

    def notes(self) -> list[str]:
        """What to say of the whole run."""
        children = self._hooks.children
        trained, started = (_processes(number) for number in (children.trained, children.started))
        found = [f"{trained} trained models, which this record does not contain"] if children.trained else []
        found += [f"{started} started anew (spawn): what they run is not recorded"] if children.started else []
        return [*self.models.notes, *found]

    def stop(self) -> bool:
        """No more. Windows that are open are closed and handed on. Returns whether it was on."""
        if not self._on:
            return False
        self._on = False
        self._hooks.__exit__()
        if self._active:
            with self._lock, self._guard:
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
                with self._lock, self._guard:
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
        with self._lock, self._guard:
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
        with self._lock, self._guard:
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
            with self._lock, self._guard:
                self._abandon_failed(thread)

    def _abandon_failed(self, thread: int | None = None) -> None:
        """Of the forward that ended last in a thread, where an exception ended it, hooks have stayed until now."""
        _, window = self._calls.pop(threading.get_ident() if thread is None else thread, (None, None))
        if window is not None:
            window.abandon()
            window.left(_FORWARD_FAILED)
            self._windows.close(window)

    # Backward.

    def backward_begins(self, tensors: Any, gradients: Any, inputs: Any) -> None:
        """See Watcher."""
        if self._active and self._windows:
            with self._lock, self._guard:
                self._passes.begin(tensors, gradients, inputs)

    def backward_over(self) -> None:
        """See Watcher."""
        if self._active:
            with self._lock, self._guard:
                self._passes.end()
            self._windows.stop_if_asked()

    def scaled(self, scaler: Any, losses: Any, made: Any) -> None:
        """See Watcher."""
        if self._active and self._windows:
            with self._lock, self._guard:
                self._passes.scaled(scaler, losses, made)

    # Optimizers.

    def made(self, optimizer: Optimizer) -> None:
        """See Watcher."""
        with self._lock, self._guard:
            self.clocks.changed(optimizer)

    def compiled(self, module: nn.Module) -> None:
        """See Watcher."""
        with self._lock, self._guard:
            self.models.compiled(module)

    def forked(self) -> None:
        """See Watcher. Another thread may have held the lock, which nobody here releases."""
        self._on = self._active = False

    def step_begins(self, optimizer: Optimizer, closure: bool) -> Callable[[], object] | None:
        """See Watcher."""
        if not self._active:
            return None
        failed = None
        with self._lock, self._guard:
            failed = self._steps.begins(optimizer, closure)
        self._windows.stop_if_asked()
        return failed and self.safe(failed)

    def step_over(self, optimizer: Optimizer) -> None:
        """See Watcher."""
        if self._active:
            with self._lock, self._guard:
                self._steps.over(optimizer)

    def scaler_stepped(self, optimizer: Optimizer) -> None:
        """See Watcher."""
        if self._active:
            with self._lock, self._guard:
                self._steps.scaler_stepped(optimizer)


def _processes(number: int) -> str:
    return f"{number:,} child process{'es' * (number != 1)}"


_FORWARD_FAILED = "a forward failed: what came before is here"

"""Observes a program while it runs, and hands on one step of a model at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.compilations import CompilationLog
from hookcli.hooks.operators.functions import function_names
from hookcli.hooks.program.global_hooks import GlobalHooks
from hookcli.hooks.torch_private.dynamo import is_compiled_in_place
from hookcli.record.observe.following import Following, Passing
from hookcli.record.observe.models.model import why_unobservable
from hookcli.record.observe.models.models import ObservedModels
from hookcli.record.observe.optimizer_calls import OptimizerCalls
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps
from hookcli.record.observe.passes import BackwardPasses, Forwards
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.record.observe.steps.open_steps import OpenSteps, StepSink
from hookcli.system.handlers import raised_by_signal_handler
from hookcli.tensors import torch_private
from hookcli.tensors.tree import Args, Kwargs


class Observer:
    """A Listener that is on between `start` and `stop`. `only`: which outermost modules count.

    Each event takes the lock, so that one thread is inside at a time, and the error boundary, so that a failure of
    hookcli never becomes one of the program.
    """

    def __init__(self, plan: RecordingPlan, sink: StepSink, only: Callable[[nn.Module], bool] | None = None) -> None:
        self.optimizer_steps = OptimizerSteps()
        self.models = ObservedModels(self.optimizer_steps, only)
        self.clock = ProgramClock()
        self._sink = sink
        self._compilations = CompilationLog()
        self._steps = OpenSteps(plan, sink, self.safe, self.clock, self._compilations)
        self._inside = self._steps.inside
        self._forwards = Forwards(self.models, self._steps)
        self._passes = BackwardPasses(self._steps)
        self._optimizer_calls = OptimizerCalls(self.optimizer_steps, self.models, self._steps)
        self.data_wait_begins = self.clock.wait_begins
        self._batch_taken = self.safe(self._take_batch)
        self._fail = self.safe(self._forwards.fail)  # at once: the program may need the memory that a step holds
        self.backward_begins = self.safe(self._begin_backward)
        self.loss_scaled = self.safe(self._passes.scaled)
        self.parameters_added = self.safe(self._add_parameters)
        self.state_loaded = self.safe(partial(self._steps.parts.tell, "state_loaded", ""))
        self.scaler_stepped = self.safe(self._optimizer_calls.scaler_stepped)
        self._hooks = GlobalHooks(self)
        hears_steps = self._steps.parts.hear("optimizer_stepped", "loss_read", "wants", "inside")
        following = Following(plan, self.clock, self._steps.schedule, every_step=hears_steps)
        self._passing = Passing(following, self._optimizer_calls, self.models, self._hooks)
        if plan.ops:
            function_names(torch.add)  # PyTorch lists its functions, before the program has warned of anything
        self._lock = threading.RLock()
        self._boundary = ErrorBoundary(self._give_up, self.clock)
        self._on = self._active = False

    def start(self, optimizers: Iterable[Optimizer] | None = None) -> Self:
        """Begin to observe. `optimizers` are those that exist already; None searches for them."""
        self.optimizer_steps.find_existing(optimizers)
        self._hooks.__enter__()
        self._on = self._active = True
        return self

    def stop(self) -> bool:
        """Stop observing; close the open steps and hand them on. Returns whether the observer was on."""
        if not self._on:
            return False
        self._on = False
        self._hooks.__exit__()
        if self._active:
            with self._lock, self._boundary:
                self._end_passing()
                self._forwards.fail()
                for step in self._steps:
                    self._steps.leave(step)
                self._steps.losses.end(name for name, model in self.models.counts.items() if model.forwards)
                for name, note in self._steps.losses.notes():
                    self.models.counts[name].note(note)
                self._steps.parts.tell("run_ends", "")
                self.models.note_calls()
                for name, number in self._optimizer_calls.passed_of.items():
                    self.models.counts[name].note(_PASSED.format(number=number, of=self.models.counts[name].steps))
                for name, line in self._steps.failed:
                    self.models.counts[name].note(line) if name else self.models.notes.setdefault(line)
        self._active = False
        self._steps.discard()
        if self._inside:
            self._inside.close()
            for name, model in self.models.counts.items():
                for note in self._inside.notes(name):
                    model.note(note)
        return True

    def totals(self) -> dict[str, Any]:
        """The fields of a record's End that count models, steps, and hookcli's own time."""
        return {
            "models": [asdict(model) for model in self.models.counts.values()],
            "others": dict(self.models.others),
            "program_steps": self._optimizer_calls.program_steps.count,
            "hookcli_seconds": self.clock.cost,
            "compiled": made.to_dict() if (made := self._compilations.result()) else {},
        }

    @property
    def sees_inside(self) -> bool:
        """True if steps may be seen inside compiled parts."""
        return self._inside is not None

    @property
    def ended_by_part(self) -> bool:
        """True if a part has asked to end the program."""
        return self._steps.ending.asked

    @property
    def serves_parent(self) -> bool:
        """True in a forked child that loads its parent's data, or keeps its objects."""
        return self._hooks.children.serves_parent

    def notes(self) -> list[str]:
        nothing = self._inside.none_found() if self._inside and not self.models.compiled_around else ()
        of_parts = (note for notes in self._steps.parts.tell("notes", "") for note in notes)
        return [*torch_private.notes(), *self.models.notes, *nothing, *of_parts]

    def child_notes(self) -> list[str]:
        """Notes on child processes, for a record that has no parts for them."""
        children = self._hooks.children
        counts = {
            "trained models, which are not in this record": children.trained,
            "started anew (spawn), which are not recorded": children.started,
        }
        return [f"{number:,} child process{'es' * (number != 1)} {did}" for did, number in counts.items() if number]

    def safe(self, function: Callable[..., object]) -> Callable[..., Any]:
        """Wrap a function as a hook that never raises, and does nothing once hookcli has failed."""
        return partial(self._safely, function)

    def _safely(self, function: Callable[..., object], *args: object, **kwargs: object) -> Any:
        if self._active:
            with self._lock, self._boundary:
                return function(*args, **kwargs)
        return None

    def _give_up(self, error: Exception) -> None:
        self._active = False
        self._sink.gave_up(error)
        if error.__context__ is None:  # else an exception of the program may be passing through these hooks
            self._steps.discard()

    # Forwards.

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs | None = None) -> bool:
        if not self._active:
            self._steps.discard()
            return False
        if self._inside and self._inside.tries_elsewhere:
            return False
        with self._lock:
            self.clock.outermost()
            with self._boundary:
                return self._forwards.begin(module, args, kwargs)
        return False

    def leave(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        model, step = self._forwards.pop()
        if step is not None and not self._active:  # hookcli has failed within
            step.measured.stop_operators()
        if model is None or not self._active:
            return
        with self._lock, self._boundary:
            self._forwards.end(model, step, args, kwargs, output)
        self._steps.ending.stop_if_asked()

    def call_failed(self, thread: int | None = None) -> None:
        if not (self._inside and self._inside.tries_elsewhere):
            self._fail(thread)

    def call_failing(self) -> None:
        if self._inside and self._inside.tries_elsewhere:
            return
        with self._lock, self._boundary:
            self._forwards.failing()

    def data_wait_over(self, batches: object) -> None:
        self.clock.wait_over()
        if not self.clock.waiting:
            self._batch_taken(batches)

    def _take_batch(self, batches: object) -> None:
        self._steps.epochs.taken(batches)
        self._steps.parts.tell("batch_taken", "", batches)

    # Backward passes.

    def _begin_backward(self, tensors: Any, gradients: Any, inputs: object) -> None:
        losses = self._steps.losses
        models = [] if self.optimizer_steps else list(self.models.alive())
        if len(models) < 2 and self.optimizer_steps.get_gradients(inputs) and not why_unobservable():
            losses.begin_pass(self._passes.losses(tensors, gradients), self.optimizer_steps)
            if self._steps.parts.hear("backward_without_graph") and self._passes.have_no_graph(tensors):
                self._steps.parts.tell("backward_without_graph", "", self.models.alive())
            if self._steps.parts.hear("backward_begins"):
                self._steps.parts.tell("backward_begins", "", partial(self._passes.scale, tensors))
            if models:
                losses.stepped({models[0].name: max(models[0].step() - 1, 0)})
        if self._steps:
            self._passes.begin(tensors, gradients, inputs)

    def backward_over(self) -> None:
        if self._active:
            self._safely(self._end_backward)
            self._steps.ending.stop_if_asked()

    def _end_backward(self) -> None:
        counts = self._steps.losses.end_pass(self.optimizer_steps)
        if counts and self._steps.parts.hear("backward_over"):
            self._steps.parts.tell("backward_over", "", self.models.alive())
        if self._passes.under_way:
            self._passes.end()

    # Optimizers.

    def step_begins(self, optimizer: Optimizer, closure: bool) -> Callable[[], object] | None:
        if not self._active:
            return None
        over = self._safely(self._optimizer_calls.begin, optimizer, closure)
        self._steps.ending.stop_if_asked()
        return over and self.safe(over)

    def step_over(self, optimizer: Optimizer) -> None:
        self._safely(self._end_step, optimizer)
        self._steps.ending.stop_if_asked()

    def _end_step(self, optimizer: Optimizer) -> None:
        self._optimizer_calls.end(optimizer)
        self._compilations.read()
        self._passing.step_over(optimizer, waits=bool(self._steps))

    def step_passed(self, optimizer: Optimizer) -> None:
        if self._passing.step_passed():
            self._safely(self._passing.go_on, optimizer)

    def step_of_other(self, optimizer: Optimizer) -> None:
        if not self._passing.is_of(optimizer):
            self._safely(self._end_passing)

    def evaluation_begins(self) -> bool:
        if not self._passing.evaluates:
            self._safely(self._end_passing)
        return not self._passing.on

    def _end_passing(self) -> None:
        if self._passing.on:
            self._passing.end()

    def _add_parameters(self, optimizer: Optimizer) -> None:
        self._end_passing()
        self.optimizer_steps.parameters_added(optimizer)

    # The program.

    def compiled_before(self, module: nn.Module | None) -> None:
        """Note a module that `module.compile()` had compiled before the observer was on."""
        if module is not None:
            self._hooks.compiled_in_place(module)

    def module_compiled(self, module: nn.Module) -> bool:
        if self._inside and self._active and is_compiled_in_place(module):
            return True
        self._safely(self.models.compiled, module)
        return False

    def forked(self) -> None:
        # Without the lock: a thread of the parent may have held it, and none here will release it.
        self._on = self._active = False
        self._steps.discard()


_PASSED = (
    "the loss of {number:,} of {of:,} steps is not known: to read it takes time, of which hookcli spends 1 % at most"
    " between recorded steps (--every N reads each)"
)


class ErrorBoundary:
    """A `with` block that hands hookcli's own exceptions to `failed` and raises only what signal handlers raise.

    A class rather than a @contextmanager, since every call of a model passes through several. The lock that lets one
    thread in at a time goes around it: Python enters a lock's exit without checking for signals, but a Ctrl-C may keep
    this one's from beginning. The program's clock stands still meanwhile. After an exception grad mode is as before:
    PyTorch's `no_grad` does not put it back where a signal handler's exception breaks into its own lines.
    """

    def __init__(self, failed: Callable[[Exception], None], clock: ProgramClock) -> None:
        self._failed = failed
        self._clock = clock
        self._grad_modes: list[bool] = []

    def __enter__(self) -> None:
        self._grad_modes.append(torch.is_grad_enabled())
        self._clock.enter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._clock.leave()
        before = self._grad_modes.pop()
        if error is not None:
            torch.set_grad_enabled(before)
        if not isinstance(error, Exception) or raised_by_signal_handler(error):
            return False
        self._failed(error)
        return True

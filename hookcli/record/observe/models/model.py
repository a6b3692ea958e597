"""A model of the program: its counts of forwards and steps, without keeping it alive; or why it isn't observed."""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import replace
from time import perf_counter
from types import FrameType

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli.hooks.alive import built_modules
from hookcli.hooks.clock import Mark
from hookcli.hooks.option_values import OPS
from hookcli.hooks.torch_private.dynamo import frames_compiled
from hookcli.hooks.torch_private.modules import all_parts
from hookcli.hooks.torch_private.overrides import dispatch_modes, in_func
from hookcli.record.file.record_lines import ModelRun
from hookcli.record.observe.judged_steps import JudgedSteps
from hookcli.record.observe.naming import unwrap
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps, Snapshot, parameter_ids
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.registry.capability import hint
from hookcli.table import Row
from hookcli.table.marks import MEANT, UNKNOWN, WRITTEN, is_unexplained
from hookcli.table.training import TrainingCourse
from hookcli.tensors.tree import type_text
from hookcli.tensors.weak import WeakIds

_masked: WeakIds[type, set[str]] = WeakIds()
"""By the class of a model, which a copy of it shares, the modules that return -inf which is meant."""


class Stopwatch:
    """Times steps from their first forward to the last optimizer's step; the mean leaves out observed steps."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._ended: float | None = None
        self._seconds, self._count = 0.0, 0

    def start(self, *, goes_on: bool = False) -> None:
        """A forward begins; the first one of a step starts the clock. `goes_on`: the step did not end with the lap."""
        if goes_on:
            self._ended = None
        self._settle()
        if self._began is None:
            self._began = perf_counter()

    def lap(self) -> None:
        """End the step here, unless another lap comes before the next start."""
        if self._began is not None:
            self._ended = perf_counter()

    def take(self) -> float | None:
        """Seconds of the current step, which the mean then leaves out; None if it had no forward or has not ended."""
        began, ended = self._began, self._ended
        self._began = self._ended = None
        return ended - began if began is not None and ended is not None else None

    def mean(self) -> float | None:
        """Mean seconds per step since the last call of `mean`."""
        self._settle()
        mean = self._seconds / self._count if self._count else None
        self._seconds, self._count = 0.0, 0
        return mean

    def _settle(self) -> None:
        if self._ended is not None and (seconds := self.take()) is not None:
            self._seconds, self._count = self._seconds + seconds, self._count + 1


class ObservedModel:
    """Counts the forwards and steps of one model, and knows its optimizers; holds none of them alive.

    `hidden` is the reason why no hook sees the model's forward; empty if hooks do. `shared`: it is one of many that a
    program makes, and counts on from the others, with which it shares a name: or the first step of each were recorded.
    """

    def __init__(
        self, module: nn.Module, counts: ModelRun, optimizer_steps: OptimizerSteps, *, shared: bool = False
    ) -> None:
        self.counts = counts
        self.name = counts.model
        """The name that tells it apart in the record, such as "Net" or "Net #2"."""
        self.training, self.inference = Stopwatch(), Stopwatch()
        self.hidden = ""
        self.ended: Mark | None = None
        """The moment when its last step ended; None if unknown."""
        self.differentiated: bool | None = None
        """True if a recorded step had a backward pass although no optimizer has its parameters; None if unknown."""
        self.before: Snapshot | None = None
        """Its weights as its last forward began, if no optimizer updates them and the next step is recorded."""
        self.is_in_doubt = False
        """True if nothing told why a value is infinite, so that the next steps watch operators."""
        self.judged = defaultdict[str, JudgedSteps](JudgedSteps)
        """What the checks have found so far, by phase."""
        self.course = TrainingCourse()
        self.rebind(module)
        self._optimizer_steps = optimizer_steps
        self._version = -1
        self._optimizers: list[weakref.ref[Optimizer]] = []  # which drops a reference as its optimizer dies
        self._names: list[str] = []
        self._shared = shared
        self._forwards = counts.forwards + counts.no_grad_forwards if shared else 0
        self._since_training = 0
        self._due = 0
        self._no_grad_taken = -1, 0
        self._steps: int | None = None
        self._stepped: set[int] = set()

    def hide(self, why: str) -> None:
        self.hidden = why
        self.counts.note(why)

    def rebind(self, module: nn.Module) -> None:
        self._module = weakref.ref(unwrap(module))

    @property
    def module(self) -> nn.Module | None:
        """The module inside PyTorch's wrappers; None once it has been freed."""
        return self._module()

    def optimizers(self) -> list[Optimizer]:
        return [optimizer for ref in tuple(self._references()) if (optimizer := ref()) is not None]

    def trained_by(self) -> list[Optimizer]:
        """Its optimizers as a backward pass begins. Their names are known even after a `main()` that made them."""
        optimizers = self.optimizers()
        if not self.counts.steps:
            self._names = [type(optimizer).__name__ for optimizer in optimizers]
        return optimizers

    def waiting_optimizers(self) -> list[Optimizer]:
        """Its optimizers that have made no step yet."""
        return [optimizer for optimizer in self.optimizers() if not self._optimizer_steps.count(optimizer)]

    def unused_optimizers(self) -> list[str]:
        """The names of its optimizers as the last backward pass began, if none has made a step.

        None where the program has failed, or has put the model into eval mode.
        """
        failed = getattr(sys, "last_value", None) is not None
        module = self.module
        return [] if failed or self.counts.steps or (module and not module.training) else self._names

    def with_masks(self, rows: Sequence[Row], *, looked: bool) -> Sequence[Row]:
        """The rows of outputs; without gradients, no node tells whether -inf is meant.

        It is in modules of a class in which it was in training. Before the first step of a program that has an
        optimizer that is not known yet: the step will tell. `looked`: operators were watched; else they are from the
        next step on, if nothing tells why a value is infinite.
        """
        known = _masked.get(type(self.module)) or set()
        meant = {row.fqn for row in rows if row.get("scores") in MEANT}
        if meant - known:
            _masked[type(self.module)] = known = known | meant
        if looked:
            for judged in self.judged.values():
                judged.withdraw("HK003", meant)
        awaited = bool(self._optimizer_steps) and not self.program_trains
        rows = [
            replace(row, values={**row.values, "scores": WRITTEN})
            if row.get("scores") == UNKNOWN and (awaited or row.fqn in known)
            else row
            for row in rows
        ]
        self.is_in_doubt |= not looked and any(map(is_unexplained, rows))
        return rows

    def operators_to_watch(self, plan: RecordingPlan, *, inside: bool) -> str | None:
        """The operators that its next step watches: as planned, or to clear up a doubt.

        `inside`: steps are seen inside compiled programs, which have none.
        """
        return OPS[0] if self.is_in_doubt and not inside else plan.ops

    def _references(self) -> list[weakref.ref[Optimizer]]:
        if self._version != self._optimizer_steps.version and (module := self.module) is not None:
            self._version = self._optimizer_steps.version
            optimizers = self._optimizer_steps.of(module)
            self._optimizers = alive = list[weakref.ref[Optimizer]]()
            alive += [weakref.ref(optimizer, alive.remove) for optimizer in optimizers]
            if optimizers and self._steps is None:
                made = max(map(self._optimizer_steps.count, optimizers))
                self._steps = made + self.counts.steps * self._shared
                self.counts.steps += made
        return self._optimizers

    @property
    def has_optimizer(self) -> bool:
        return bool(self._references())

    @property
    def stale_optimizer(self) -> str:
        """An optimizer that has stepped with parameters of no module, and without gradients; "" if none has."""
        return self._optimizer_steps.stale

    def idles(self, gradients: Sequence[Row]) -> bool:
        """Note whether this model learns in a step with these gradients.

        Returns True if only zeros came back to it, and another model learns: its loss may have no weight yet.
        """
        learning = self._optimizer_steps.learning
        if any(row["zeros"] != row["numel"] for row in gradients if row.stats):
            learning.add(self.name)
            return False
        return bool(learning - {self.name}) and any(row["kind"] == "output" for row in gradients)

    def note_optimizers(self) -> None:
        """Note in the course of the training what the program's optimizers hold."""
        self.course.stale, self.course.has_optimizers = self.stale_optimizer, self.program_trains
        self.course.idle_optimizer = self._optimizer_steps.idle

    @property
    def program_trains(self) -> bool:
        """True if some optimizer has stepped, of this model or another."""
        return self._optimizer_steps.any_stepped

    @property
    def trained(self) -> bool:
        return self.has_optimizer or self._steps is not None

    def step(self) -> int:
        """Number of the current step: counted by its optimizers, or by its forwards if it has none."""
        return (self._steps or 0) if self._references() else self._forwards

    def next_step_of(self, optimizer: Optimizer) -> int:
        return self.step() - (1 if self._stepped and id(optimizer) not in self._stepped else 0)

    @property
    def mid_step(self) -> bool:
        """True if its optimizers step in turns, and some have yet to: each is one step behind those that have.

        Optimizers in turns have their own parameters; one that shares some with another takes over from it.
        """
        if not self._stepped or len(self._references()) < 2:
            return False
        made, left = list[Optimizer](), list[Optimizer]()
        for optimizer in self.optimizers():
            (made if id(optimizer) in self._stepped else left).append(optimizer)
        if not (made and left):
            return False
        counts = {self._optimizer_steps.count(optimizer) for optimizer in left}
        if counts != {min(map(self._optimizer_steps.count, made)) - 1}:
            return False
        held = set[int]().union(*map(parameter_ids, made))
        return all(held.isdisjoint(parameter_ids(optimizer)) for optimizer in left)

    def steps_passed(self, steps: int) -> range:
        """Count steps of its only optimizer, which has stepped, that were not followed. Returns their numbers."""
        first = self._steps or 0
        self._steps = first + steps
        self.counts.steps += steps
        self.ended = None
        return range(first, first + steps)

    def stepped(self, optimizer: Optimizer) -> None:
        """Count a step of an optimizer. Several that step after one forward, or in turns, make one step together."""
        step = self.next_step_of(optimizer)
        if step == self._steps:
            self._steps = step + 1
            self._stepped.clear()
            self.counts.steps += 1
        self._stepped.add(id(optimizer))

    def forwards_passed(self, steps: int, forwards: tuple[int, int]) -> None:
        """Count the forwards, with and without gradients, of steps that were not followed: each as many as usual."""
        with_gradients, without = forwards
        self.counts.forwards += steps * with_gradients
        self.counts.no_grad_forwards += steps * without
        self._forwards += steps * (with_gradients + without)

    def count_forward(self, *, grad: bool) -> int:
        """Count a forward. Returns how many without gradients came before it since the last one with; 0 with them."""
        self._forwards += 1
        if grad:
            if not self.mid_step:
                self._stepped.clear()
            self.counts.forwards += 1
            self._since_training = 0
            return 0
        self.counts.no_grad_forwards += 1
        self._since_training += 1
        return self._since_training - 1

    def due(self, every: int) -> bool:
        """True if to record this forward without gradients: `every` forwards after the last such one."""
        if self._shared:
            return (self._forwards - 1) % every == 0
        if self._forwards <= self._due:
            return False
        self._due = self._forwards + every - 1
        return True

    def takes_no_grad(self, limit: float, period: int) -> bool:
        """True if to record this forward without gradients: at most `limit` in a period. Counts those left out."""
        before = self._no_grad_taken[1] if self._no_grad_taken[0] == period else 0
        if before >= limit:
            self.counts.left_out += 1
            return False
        self._no_grad_taken = period, before + 1
        return True


_INSIDE = hint("inside compiled")
_SHOWN = f" ({_INSIDE} shows it)" if _INSIDE else ""
COMPILED_IN_PLACE = f"compiled in place by Module.compile(): no hook sees its forward{_SHOWN}"


def capturing() -> bool:
    """True if a CUDA graph is being captured. Never initializes CUDA, which forks do not survive."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def why_unobservable() -> str:
    """Why a forward that begins now cannot be observed; empty if it can."""
    if in_func():
        return "runs inside torch.func or vmap: its tensors stand for others, and have no values to measure"
    if modes := dispatch_modes():
        return f"runs under {type(modes[-1]).__name__}, which would see hookcli's own operations"
    if capturing():
        return "runs while a CUDA graph is captured, which may contain nothing else"
    return ""


COMPILED_AROUND = (
    "parameters of models whose forward no hook saw, as inside a function that torch.compile has compiled: that stays"
    " whole" + f"; compile the model, not the function around it, to see inside with {_INSIDE}" * bool(_INSIDE)
)


def why_never_ran(optimizer: Optimizer, compiled: int, left_out: Container[nn.Module] = ()) -> str:
    """Why no hook saw a forward with these parameters; `compiled`: `frames_compiled` as the observation began. Models
    that are `left_out` have their own note.
    """
    if frames_compiled() > compiled:
        return COMPILED_AROUND
    parameters = parameter_ids(optimizer)
    holders = [
        module
        for module in built_modules()
        if any(id(p) in parameters for part in all_parts(module) for p in part.parameters(recurse=False))
    ]
    if not holders:
        return "tensors of no module: only their gradients and updates can be observed"
    if any(module in left_out for module in holders):
        return "of a model that is left out: only their gradients and updates can be observed"
    return forward_called(max(holders, key=lambda module: len(all_parts(module))))


def forward_called(module: nn.Module) -> str:
    """The note on a module whose `forward` was called directly, or by a `__call__` of its own class."""
    name = type_text(module)
    if type(module).__call__ is not nn.Module.__call__:
        return f"{name} has a __call__ of its own, which runs no hooks"
    return f"{name} was never called as model(x), and {name}.forward(x) runs no hooks: call model(x) to see it"


def bypassing_owner(module: nn.Module) -> nn.Module | None:
    """The module that contains this one and whose `forward`, called directly, is now running; None if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            owner: object = frame.f_locals.get(code.co_varnames[0])
            parts = all_parts(owner) if isinstance(owner, nn.Module) and owner is not module else ()
            if isinstance(owner, nn.Module) and any(part is module for part in parts):
                return owner
        frame = frame.f_back
    return None

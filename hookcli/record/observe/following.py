"""Decides which steps are followed, where to follow every one would take too much of a small model's time."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple
from weakref import ref

from torch.optim.optimizer import Optimizer

from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.program.global_hooks import GlobalHooks
from hookcli.record.observe.models.model import ObservedModel
from hookcli.record.observe.models.models import ObservedModels
from hookcli.record.observe.optimizer_calls import OptimizerCalls
from hookcli.record.observe.recording_plan import RecordingPlan, Schedule
from hookcli.system.torchrun import joined_world

_SHARE, _AIM = 0.01, 0.0075
"""Following every step may take this share of the program's time; where it takes more, this one is aimed at."""
_SLOW = 0.06
"""Seconds of the program's own from which on each of its steps is followed, whatever that takes."""
_SAMPLES = 8
_FIRST, _QUICK, _AT_FIRST = 256, 1000, 5.0
"""Steps that are all followed, and how many are within so many seconds: a short run can afford to know each loss."""
_MOST = 64
"""The largest interval between followed steps: a loss that goes wrong is seen within it."""


class _Moment(NamedTuple):
    """The end of a step, by the program's clock, and what hookcli had taken until then, in seconds."""

    program: float
    cost: float


class Following:
    """Says, at the end of each step, how many steps to let pass without following them.

    The rule: the first 256 steps are followed, or 1,000 if the program makes them in five seconds, and until eight of
    those that are not recorded have been timed. If hookcli takes more than 1 % of the program's time in such steps, and
    the program less than 60 ms for each, then only those are followed whose number is a multiple of a power of two, 64
    at most, so many that hookcli takes 0.75 %; two runs have steps in common. Followed in any case, each from the end
    of the step before it, are the steps that the schedule may choose: by their number, after something was found, and
    at the ends of epochs. Where every step is asked for (an interval, a part that wants, hears of or looks inside each
    step, ranks), none passes.

    Both times are those in the lower quarter of the last steps: others on the machine, and evaluations between steps,
    make single ones longer.
    """

    def __init__(
        self, plan: RecordingPlan, clock: ProgramClock, schedule: Schedule, *, every_step: bool = False
    ) -> None:
        self.asked_for_all = bool(every_step or plan.every is not None)
        self.clock = clock
        self._schedule = schedule
        self._costs = deque[float](maxlen=_SAMPLES)
        self._seconds = deque[float](maxlen=_SAMPLES)
        self._before: _Moment | None = None
        self._began = clock.now()

    def begin(self) -> None:
        """A step begins here that is followed, after others that were not."""
        self._before = _Moment(self.clock.now(), self.clock.cost)

    def followed(self, step: int) -> None:
        """Time the step of this number, which is over, if it was followed from its start and not recorded."""
        before = self._before
        self.begin()
        if before is not None and self._before is not None and not self._schedule.has_chosen(step):
            self._costs.append(self._before.cost - before.cost)
            self._seconds.append(self._before.program - before.program)

    def passing(self, step: int) -> int:
        """The number of steps to let pass, from this one on, which comes next: 0 if it is to be followed."""
        between = self.between()
        quick = step < _QUICK and self.clock.now() - self._began < _AT_FIRST
        if between == 1 or step < _FIRST or quick:
            return 0
        until = step
        while until % between and not self._schedule.may_choose(until, step) and until - step < _MOST:
            until += 1
        return until - step

    def between(self) -> int:
        """Return the interval between followed steps; 1 if all are followed."""
        if len(self._costs) < _SAMPLES:
            return 1
        cost, seconds = (sorted(times)[_SAMPLES // 4] for times in (self._costs, self._seconds))
        if seconds >= _SLOW or cost <= _SHARE * seconds:
            return 1
        number = 1
        while number < _MOST and cost > _AIM * seconds * number:
            number *= 2
        return number


class Passing:
    """Lets steps of a program pass: counts the steps of its only optimizer, and follows the program again in time.

    `hooks` are switched off meanwhile. What is not seen is counted once the program is followed again: steps, whose
    losses are unknown, and of each model as many forwards as it makes in every step.
    """

    def __init__(self, following: Following, calls: OptimizerCalls, models: ObservedModels, hooks: GlobalHooks) -> None:
        self._following = following
        self._calls = calls
        self._models = models
        self._hooks = hooks
        self._optimizer: ref[Optimizer] | None = None
        self._passed = self._number = 0
        self._before: dict[str, tuple[int, int]] = {}
        self._made = deque[dict[str, tuple[int, int]]](maxlen=_SAMPLES)
        self._trained: list[ObservedModel] = []
        self._usual: list[tuple[ObservedModel, tuple[int, int]]] = []

    @property
    def on(self) -> bool:
        return self._optimizer is not None

    def step_over(self, optimizer: Optimizer, *, waits: bool) -> None:
        """A step is over that was followed: let the next ones pass, if they may. `waits`: some step is still open."""
        if self._following.asked_for_all:
            return
        models = self._models.of(optimizer)
        self._note_forwards()
        steps = {model.step() for model in models}
        if len(steps) != 1:
            self._following.begin()
            return
        step = steps.pop()
        self._following.followed(step - 1)
        number = self._following.passing(step)
        alone = self._calls.alone and not waits and not any(model.hidden for model in models)
        if number and alone and joined_world().size == 1 and self._hooks.let_pass():
            self._begin(optimizer, number)

    def _note_forwards(self) -> None:
        """Note how many forwards each model has made in the step that is over."""
        before = self._before
        self._before = {name: (one.forwards, one.no_grad_forwards) for name, one in self._models.counts.items()}
        made = dict[str, tuple[int, int]]()
        for name, (grad, no_grad) in self._before.items():
            grad_before, no_grad_before = before.get(name, (0, 0))
            made[name] = grad - grad_before, no_grad - no_grad_before
        self._made.append(made)

    def _begin(self, optimizer: Optimizer, number: int) -> None:
        self._optimizer, self._passed, self._number = ref(optimizer), 0, number
        self._trained = self._models.of(optimizer)
        self._usual.clear()
        for model in self._models.alive():
            every = [made.get(model.name, (0, 0)) for made in self._made]
            usual = min(grad for grad, _ in every), min(no_grad for _, no_grad in every)
            self._usual.append((model, usual))

    def step_passed(self) -> bool:
        """Count a step that has passed. Returns whether it was the last of them."""
        self._passed += 1
        return self._passed >= self._number

    def go_on(self, optimizer: Optimizer) -> None:
        """At the end of the last step that may pass, follow the next one, or let more pass."""
        self.end()
        for model in self._models.of(optimizer):
            model.ended = self._following.clock.mark()
        steps = {model.step() for model in self._models.of(optimizer)}
        number = self._following.passing(steps.pop()) if len(steps) == 1 else 0
        if number and self._calls.alone and self._hooks.let_pass():
            self._begin(optimizer, number)

    def end(self) -> None:
        """Follow the program from here on, and count what was not followed."""
        optimizer = self._optimizer() if self._optimizer else None
        passed, self._passed, self._optimizer = self._passed, 0, None
        self._hooks.follow()
        for model, usual in self._usual if passed else ():
            model.forwards_passed(passed, usual)
        if passed:
            self._calls.passed(self._trained, passed, optimizer)
        self._before = {name: (one.forwards, one.no_grad_forwards) for name, one in self._models.counts.items()}
        self._following.begin()

    def is_of(self, optimizer: Optimizer) -> bool:
        """True if it is this optimizer whose steps pass."""
        return self._optimizer is not None and self._optimizer() is optimizer

    @property
    def evaluates(self) -> bool:
        """True if forwards without gradients are a part of each step, such as a teacher's."""
        return any(no_grad for _, (_, no_grad) in self._usual)

"""The plan of a recording: what to measure, and which steps to record: every Nth, or as many as their time allows."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hookcli import registry
from hookcli.errors import PluginError, UsageError, UserCode, in_brief, shortened, unknown
from hookcli.hooks.option_values import FURTHER_PROBES, OPS
from hookcli.registry.capability import capabilities, load_text, recorder_options, search_option
from hookcli.system.torchrun import joined_world

if TYPE_CHECKING:  # `hookcli run` itself does without torch
    from hookcli.hooks.clock import ProgramClock
    from hookcli.record.observe.epochs import Epochs

PROBES = ("activations", "grads", "updates", "optimizer", "time")
NO_GRAD = 1
"""Default limit of recorded forwards without gradients."""


@dataclass(frozen=True)
class RecordingPlan:
    """Records one in `every` steps, from `start` until before `stop`, for `max_seconds` from now on.

    Without `every` a Schedule chooses: the first steps, then fewer, as the run's time allows.

    `probes` by name: "grads" measures gradients of parameters and of what modules return, "updates" what optimizers
    change, "optimizer" the settings and norms of parameter groups, "time" where the time goes. `match` is a glob that
    narrows modules and parameters. `check` judges the recorded training steps. `hist`: statistics have histograms.
    `ops`: "functions" measures what operators return, too: the calls of PyTorch's functions while a model's forward
    runs. Of a model that is trained, at most `no_grad` forwards without gradients are recorded in each `every` training
    steps; 0 leaves out all models' steps. `timed`: modules are timed with and without their parts, and in backward by
    autograd's nodes. `of_parts` has the given options of capabilities' parts, by name. Raises UsageError for values out
    of range.
    """

    every: int | None = None
    start: int = 0
    stop: int | None = None
    max_seconds: float | None = None
    probes: Sequence[str] = PROBES
    match: str | None = None
    check: bool = False
    hist: bool = False
    no_grad: int = NO_GRAD
    timed: bool = False
    ops: str | None = None
    of_parts: Mapping[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    ended: Event = field(default_factory=Event)
    """Set when the record can take no more; no step is observed from then on."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise UsageError(f"every {self.every} steps: give a number from 1")
        if self.ops not in (None, OPS[0]):
            raise UsageError(
                f"ops {self.ops!r}: a program that runs is recorded with {OPS[0]!r}, which changes nothing"
            )
        for name, value in self.of_parts.items():
            option = recorder_options()[name]
            if option.words and value not in option.words:
                raise UsageError(unknown(name.replace("_", "-"), str(value), option.words))
            if option.check:
                with _of_option(name):
                    load_text(option.check)(value, self)

    @property
    def searches(self) -> bool:
        """True if a part finds where the first value that is not finite begins."""
        option = search_option()
        return option is not None and option.name in self.of_parts

    def covers(self, step: int) -> bool:
        in_range = step >= self.start and (self.stop is None or step < self.stop)
        return in_range and not (self._time_is_up() or self.ended.is_set())

    def _time_is_up(self) -> bool:
        return self.max_seconds is not None and time.monotonic() - self.began > self.max_seconds

    def why_none(self, steps: int) -> str:
        """Why none of the program's `steps` was recorded; empty if the plan is not the reason."""
        if 0 < steps <= self.start:
            return f"no step was recorded: --steps begins at step {self.start}, but the last step was {steps - 1}"
        return f"no step was recorded in the {self.max_seconds:g} s of --max-seconds" if self._time_is_up() else ""


def _of_option(name: str) -> UserCode:
    """A block that calls what a capability says of its option; its errors name both."""
    owner = next((f" of {one}" for one in capabilities() if any(own.name == name for own in one.options)), "")
    option = f"option --{name.replace('_', '-')}{owner}"
    return UserCode(lambda error: PluginError(f"{option} failed: {in_brief(error)}"))


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of parts that have not their defaults; of folders the full path, of several texts a list."""
    given: dict[str, Any] = {}
    options = recorder_options()
    for name, value in values.items():
        option = options[name]
        if option.default == ():
            given[name] = [value] if isinstance(value, str) else [*value]
        elif value is not None:
            with _of_option(name):
                value = load_text(option.read)(value) if option.read else value
            given[name] = str(Path(value).absolute()) if option.folder else value
    return {name: value for name, value in given.items() if value not in ([], options[name].default)}


def judging(plan: RecordingPlan) -> list[str]:
    """The options given for parts that may let `run` end with exit code 1, by their names on the command line."""
    options = (option for one in capabilities() if one.fault for option in one.options)
    return [option.typed or option.name for option in options if option.name in plan.of_parts]


def parse_steps(text: str | None) -> tuple[int, int | None]:
    """Parse 0:1000, 500: or :20, like a slice. Raises UsageError for anything else."""
    parts = re.fullmatch(r"(\d{0,18}):(\d{0,18})", text if text is not None else ":")
    start, stop = (int(parts[1] or 0), int(parts[2]) if parts[2] else None) if parts else (0, 0)
    if stop is not None and start >= stop:
        given = shortened(text or "")
        raise UsageError(f"--steps {given!r}: give a range such as 0:1000, or 500: for step 500 and later")
    return start, stop


def parse_no_grad(text: str | None) -> int:
    """Parse off or a number from 1. Raises UsageError for anything else."""
    if text is None:
        return NO_GRAD
    if text != "off" and not re.fullmatch(r"[1-9]\d{0,17}", text):
        raise UsageError(f"--no-grad {shortened(text)!r}: give off, or a number from 1")
    return 0 if text == "off" else int(text)


def check_probes(names: Sequence[str]) -> Sequence[str]:
    """Return each name once; only plugins' need torch. Raises UsageError for a probe that can't record steps."""
    choices = (*PROBES, "inputs", *(name for name in registry.names("probes") if name in FURTHER_PROBES))
    for name in names:
        if name in choices:
            continue
        plugin = next((plugin for plugin in registry.plugins("probes") if plugin.name == name), None)
        if plugin is None:
            raise UsageError(unknown("--probe", name, choices))
        if not plugin.built_in and getattr(plugin.load(), "in_steps", False):
            continue
        alone = f"needs a separate run (`hookcli {name}`)"
        raise UsageError(f"--probe {name}: {alone}; choose from: {', '.join(choices)}")
    return [*dict.fromkeys(names)]


_DENSE, _SPARSE = 48, 16
"""The first steps, all recorded; then at most `_SPARSE` while the number of steps doubles."""
_DENSE_RANKS = _SPARSE_RANKS = 8
_ALWAYS = 2
_MINUTE = 60
_SHARE = 0.02
"""The share of the run's time that hookcli may take, of the first minute in any case."""
_AT_ONCE = _SHARE * _MINUTE / 2
"""Seconds that it may take of the first steps; as many more, over the first minute, leave a short run's end some."""
_AFTER = 2
_PHASES, _OF_PHASE = 4, 6
"""Further phases of a training, and the steps of each that are recorded as it begins."""
_REMEMBERED, _COSTS = 4096, 64


class Schedule:
    """Chooses the recorded steps of a plan.

    Without an interval the steps are first recorded densely, then those whose number is a multiple of a power of two
    that grows with the number, so that two runs have steps in common: 51 of 60 steps, 84 of 1,000, 164 of a million.
    The last step of an epoch, which may be the last of the run, is recorded, too, and so are the steps that follow the
    first one of a new optimizer, with which another phase of the training begins. A step is left out while hookcli has
    spent more than 2 % of the run's time in recorded steps, or than its part of the first minute; the first of them is
    not counted, as it has more to do, unless it has used up all of that time by itself: then even the second is left
    out. Of the others the processor's time counts, so that a busy machine records as much. Ranks must choose alike,
    without a word to each other: they go by numbers alone; and so it is `for_all`, where a part looks at every step.
    """

    def __init__(self, plan: RecordingPlan, clock: ProgramClock, epochs: Epochs, *, for_all: bool = False) -> None:
        self._plan = plan
        self._for_all = for_all
        self._epochs = epochs
        self._clock = clock
        self._began = perf_counter()
        self._chosen: dict[int, bool] = {}
        self._recorded = 0
        self._costs = deque[float](maxlen=_COSTS)  # of the last recorded steps but the first, which has more to do
        self._spent = 0.0  # in these
        self._before: float | None = None  # hookcli's processor time as the recorded step began that is under way
        self._soon: range = range(0)
        self._phase: range = range(0)
        self._phases = 0

    def records(self, step: int) -> bool:
        """True if the step of this number is recorded."""
        plan = self._plan
        if not plan.covers(step):
            return False
        number = step - plan.start
        if plan.every is not None:
            return number % plan.every == 0
        chosen = self._chosen.get(number)
        if chosen is None:
            chosen = self._chosen[number] = self._chooses(number)
            if len(self._chosen) > _REMEMBERED:
                del self._chosen[next(iter(self._chosen))]
        return chosen

    def has_chosen(self, step: int) -> bool:
        """True if this step was recorded, or is about to be."""
        return self._chosen.get(step - self._plan.start, False)

    def expects(self, step: int) -> bool:
        """True if the next step, of this number, is likely to be recorded; nothing is decided by that."""
        return self.may_choose(step, step - 1) and self.affordable(step - self._plan.start)

    def may_choose(self, step: int, now: int) -> bool:
        """True if this step may be recorded, seen from the end of the step before `now`; its time decides later."""
        if not self._plan.covers(step):
            return False
        number = step - self._plan.start
        regular = number % self.interval(step) == 0
        return (
            number < _ALWAYS
            or number in self._soon
            or number in self._phase
            or regular
            or self._epochs.may_end(step, now)
        )

    def interval(self, step: int) -> int:
        """The interval between recorded steps around this one, as far as time allows."""
        if self._plan.every is not None:
            return self._plan.every
        dense, sparse = (_DENSE, _SPARSE) if joined_world().size == 1 else (_DENSE_RANKS, _SPARSE_RANKS)
        number = step - self._plan.start
        return 1 if number < dense else _power_of_two(number / sparse)

    def affordable(self, number: int) -> bool:
        """True if hookcli's own work leaves time for one more step; always where an interval was asked for."""
        if self._plan.every is not None or self._for_all or joined_world().size > 1:
            return True
        seconds, cost = self._seconds_and_cost()
        usual = cost if len(self._costs) > 1 else 0.0  # one alone may be a second model's first, which has more to do
        if self._spent + usual <= _AT_ONCE:
            return True
        slowly = _AT_ONCE * math.sqrt(seconds / _MINUTE)
        allowed, growth = (_AT_ONCE + slowly, slowly) if seconds < _MINUTE else (_SHARE * seconds, 2 * _SHARE * seconds)
        return self._spent + cost <= allowed and number % _power_of_two(cost * number / growth) == 0

    def _seconds_and_cost(self) -> tuple[float, float]:
        """How long the run has taken, and what hookcli usually takes for a recorded step."""
        return perf_counter() - self._began, median_low(self._costs) if self._costs else 0.0

    def goes_on(self) -> bool:
        """True while the recorded step that is under way may observe more forwards: a closure may have hundreds."""
        return self._plan.every is not None or not self._is_dear(self._clock.processor)

    def _is_dear(self, own: float) -> bool:
        """True if the last recorded step has taken more of hookcli's time than the first minute of a run has for it."""
        if self._before is None or self._for_all or joined_world().size > 1:
            return False
        return own - self._before > _SHARE * _MINUTE

    def _begins_or_ends(self, number: int) -> bool:
        """True as a phase begins, or an epoch ends, if there is time; within the first minute, in full."""
        if joined_world().size > 1 or not (number in self._phase or self._epochs.ends(number + self._plan.start)):
            return False
        seconds, cost = self._seconds_and_cost()
        return self._spent + cost <= _SHARE * max(seconds, _MINUTE)

    def look_after(self, step: int) -> None:
        """Record the steps after this one, in which something was found."""
        self._soon = range(step + 1 - self._plan.start, step + 1 + _AFTER - self._plan.start)

    def optimizer_stepped(self, step: int, count: int) -> None:
        """Record the steps after this one if an optimizer has made its first with it, and not the first of the run."""
        if step and count == 1 and self._phases < _PHASES:
            self._phases += 1
            self._phase = range(step + 1 - self._plan.start, step + 1 + _OF_PHASE - self._plan.start)

    def _chooses(self, number: int) -> bool:
        own = self._clock.processor
        if self._before is not None and (self._recorded > 1 or self._is_dear(own)):
            self._costs.append(own - self._before)
            self._spent += own - self._before
        regular = number % self.interval(number + self._plan.start) == 0 and self.affordable(number)
        always = number < _ALWAYS and not self._is_dear(own)
        chosen = always or number in self._soon or regular or self._begins_or_ends(number)
        self._recorded += chosen
        self._before = own if chosen else None
        self._clock.count_processor(chosen)
        return chosen


def _power_of_two(least: float) -> int:
    """The smallest power of two that is at least this."""
    power = 1
    while power < least:
        power *= 2
    return power

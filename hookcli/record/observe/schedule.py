"""The steps of a run that are recorded: every Nth, or as many as the run's length and its time allow."""

from __future__ import annotations

from time import perf_counter

from hookcli.hooks.clock import ProgramClock
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.system.torchrun import joined_world

_DENSE = 24
"""The first steps, all recorded; then half as many while the number of steps doubles."""
_DENSE_RANKS = 8
_ALWAYS = 2
_SHARE = 0.02
_SECONDS = 1.2
"""The share of the run's time that hookcli may take, and what it may take of the first minute."""
_AFTER = 2
_REMEMBERED = 4096


class Schedule:
    """Chooses the recorded steps of a plan.

    Without an interval the steps are first recorded densely, then those whose number is a multiple of a power of two
    that grows with the number, so that two runs have steps in common: 39 of 60 steps, 88 of 1,000, 208 of a million. A
    step is left out while hookcli has spent more than 2 % of the run's time in recorded steps; the first of them is not
    counted, as it has more to do. Ranks must choose alike, without a word to each other: they go by numbers alone.
    """

    def __init__(self, plan: RecordingPlan, clock: ProgramClock) -> None:
        self._plan = plan
        self._clock = clock
        self._began = perf_counter()
        self._chosen: dict[int, bool] = {}
        self._recorded = 0
        self._spent = 0.0  # in the recorded steps after the first, which has more to do
        self._before: float | None = None  # hookcli's time as the recorded step began that is under way
        self._soon: range = range(0)

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

    def interval(self, step: int) -> int:
        """The interval between recorded steps around this one, as far as time allows."""
        if self._plan.every is not None:
            return self._plan.every
        dense = _DENSE if joined_world().size == 1 else _DENSE_RANKS
        return _power_of_two((step - self._plan.start) / dense)

    def affordable(self, number: int) -> bool:
        """True if hookcli's own work leaves time for one more step; always where an interval was asked for."""
        if self._plan.every is not None or self._plan.first_bad or joined_world().size > 1:
            return True  # a search looks at every step anyway
        seconds, cost = perf_counter() - self._began, self._spent / max(self._recorded - 1, 1)
        if self._spent + cost <= _SECONDS:
            return True
        interval = _power_of_two(cost * number / (_SHARE * seconds))
        return self._spent + cost <= _SHARE * seconds and number % interval == 0

    def look_after(self, step: int) -> None:
        """Record the steps after this one, in which something was found."""
        self._soon = range(step + 1 - self._plan.start, step + 1 + _AFTER - self._plan.start)

    def _chooses(self, number: int) -> bool:
        own = self._clock.own
        if self._before is not None and self._recorded > 1:
            self._spent += own - self._before
        regular = number % self.interval(number + self._plan.start) == 0 and self.affordable(number)
        chosen = number < _ALWAYS or number in self._soon or regular
        self._recorded += chosen
        self._before = own if chosen else None
        return chosen


def _power_of_two(least: float) -> int:
    """The smallest power of two that is at least this."""
    power = 1
    while power < least:
        power *= 2
    return power

"""The steps that are recorded without an interval: by the run's length, and by a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
from support import swept

from hookcli.hooks.clock import ProgramClock
from hookcli.record.observe import recording_plan as module
from hookcli.record.observe.epochs import Epochs
from hookcli.record.observe.recording_plan import RecordingPlan, Schedule
from hookcli.system.torchrun import World


@dataclass
class Clock:
    """The time of the run, and of the processor in hookcli's own work, in seconds."""

    seconds: float = 0.0
    processor: float = 0.0

    def count_processor(self, counts: bool) -> None:
        """It is counted by the test."""


@dataclass
class Run:
    """Steps of `step` seconds each, of which a recorded one takes `cost` seconds more."""

    schedule: Schedule
    clock: Clock
    step: float
    cost: float
    load: float = 1.0
    """How many times as long everything takes, as others are at work on the machine."""

    def steps(self, first: int, stop: int) -> list[int]:
        recorded = []
        for number in range(first, stop):
            if self.schedule.records(number):
                recorded.append(number)
                self.clock.processor += self.cost
                self.clock.seconds += self.cost * self.load
            self.clock.seconds += self.step * self.load
        return recorded


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> type[Run]:
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", lambda: clock.seconds)

    def started(step: float = 0.001, cost: float = 0.0, *, for_all: bool = False, **plan: object) -> Run:
        clock.seconds = clock.processor = 0.0
        schedule = Schedule(RecordingPlan(**plan), cast(ProgramClock, clock), Epochs(), for_all=for_all)  # type: ignore[arg-type]
        return Run(schedule, clock, step, cost)

    return cast("type[Run]", started)


@pytest.mark.parametrize(
    ("steps", "number"), [(1, 1), (48, 48), (60, 51), (200, 65), swept(1000, 84), swept(3000, 96), swept(10**5, 137)]
)
def test_the_number_of_recorded_steps_grows_with_the_logarithm_of_the_run(runs, steps: int, number: int) -> None:
    recorded = runs().steps(0, steps)
    assert len(recorded) == number and recorded[0] == 0
    assert steps - recorded[-1] <= max(steps / 6, 1)  # the last one is near the end
    later = runs().steps(0, steps * 2)
    assert set(recorded) <= set(later)  # two runs have steps in common


@pytest.mark.parametrize("steps", [200, 1000, 3000])
@pytest.mark.parametrize(("step", "cost"), [(0.003, 0.008), (0.01, 0.02), (0.02, 0.05), (0.1, 0.03), (0.5, 0.1)])
def test_a_run_that_ends_within_its_first_minute_is_recorded_up_to_its_end(
    runs, steps: int, step: float, cost: float
) -> None:
    recorded = runs(step, cost).steps(0, steps)
    assert len(recorded) >= 10 and recorded[-1] >= steps * 0.7
    assert any(steps // 4 <= number < steps // 2 for number in recorded)


@pytest.mark.parametrize("load", [3.0, 10.0])
def test_a_busy_machine_records_as_many_steps_of_a_short_run(runs, load: float) -> None:
    quiet = runs(0.07, 0.05).steps(0, 60)
    run = runs(0.07, 0.05)
    run.load = load
    assert len(quiet) < 60 and len(run.steps(0, 60)) >= len(quiet)


@pytest.mark.parametrize("step", [swept(0.02), 0.1, 2.0])
@pytest.mark.parametrize("relative", [0.2, swept(1.0), 3.0])
def test_recording_takes_at_most_two_percent_of_a_run_of_a_minute_and_more(runs, step: float, relative: float) -> None:
    run = runs(step, step * relative)
    recorded, first = list[int](), 0
    for minutes in (1, 3, 10):
        while run.clock.seconds < 60 * minutes:
            recorded += run.steps(first, first + 1)
            first += 1
        spent = (len(recorded) - 2) * step * relative  # the first one comes whatever it costs, and has more to do
        assert spent <= 0.02 * run.clock.seconds + 1e-9, (minutes, len(recorded), first)
    assert len(recorded) >= (10 if step * relative < 1 else 1)


def test_an_interval_is_kept_whatever_it_costs(runs) -> None:
    assert runs(0.1, 10.0, every=7, start=3).steps(0, 40) == [3, 10, 17, 24, 31, 38]


def test_ranks_choose_alike_whatever_their_clocks_say(runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "joined_world", lambda: World(0, 2))
    assert runs(0.1, 5.0).steps(0, 1000) == runs(0.1, 0.0).steps(0, 1000) == [*range(8), *runs().steps(8, 1000)]


def test_the_steps_after_one_in_which_something_was_found(runs) -> None:
    run = runs(0.1, 5.0)
    assert run.steps(0, 101) == [0]
    run.schedule.look_after(101)
    assert run.steps(101, 110) == [102, 103]


@pytest.mark.parametrize(("cost", "first"), [(0.1, [0, 1]), (1.1, [0, 1]), (1.3, [0]), (20.0, [0])])
def test_a_first_step_that_takes_all_of_the_time_is_not_followed_by_a_second(
    runs, cost: float, first: list[int]
) -> None:
    run = runs(0.01, cost)
    assert run.steps(0, 2) == first
    assert len(run.steps(2, 100)) < 0.6 / cost


def test_a_step_of_many_forwards_observes_them_while_there_is_time(runs) -> None:
    for plan, seen in (({}, [True, False]), ({"every": 1}, [True, True]), ({"for_all": True}, [True, True])):
        run = runs(0.01, **plan)
        assert run.schedule.records(0)
        now = []
        for seconds in (1.0, 1.0):
            run.clock.processor += seconds
            now.append(run.schedule.goes_on())
        assert now == seen


def test_one_step_that_takes_long_leaves_time_for_others(runs) -> None:
    """A second model, which is called for the first time in step 1."""
    run = runs(0.01, 0.02)
    assert run.steps(0, 1) == [0]
    run.cost = 0.3
    assert run.steps(1, 2) == [1]
    run.cost = 0.02
    assert len(run.steps(2, 48)) >= 10


def test_what_is_expected_of_a_step_decides_nothing(runs) -> None:
    run = runs(0.1, 0.3)
    for number in range(50):
        expected = run.schedule.expects(number)
        recorded = run.steps(number, number + 1)
        assert expected or not recorded[2:]
    assert [number for number in range(50) if run.schedule.records(number)] == runs(0.1, 0.3).steps(0, 50)


def test_a_step_is_decided_once(runs) -> None:
    run = runs(0.1, 0.3)
    recorded = run.steps(0, 50)
    assert [number for number in range(50) if run.schedule.records(number)] == recorded


def test_a_new_optimizer_has_its_first_steps_recorded(runs) -> None:
    """As of fine-tuning after a training: where there is time, and of the first of many such phases."""
    run = runs(0.01, 0.05)
    run.schedule.optimizer_stepped(0, 1)  # the first one of the run, which is no further phase
    begun = run.steps(0, 500)
    for step in (500, 501):
        run.schedule.optimizer_stepped(step, step - 499)
    assert begun[-1] < 500 and run.steps(501, 560)[:6] == [*range(501, 507)]
    dear = runs(0.01, 0.5)
    dear.steps(0, 500)
    dear.schedule.optimizer_stepped(500, 1)
    dear.steps(501, 560)
    assert dear.clock.processor <= 4 * dear.cost
    often = runs(0.01, 0.001)
    often.steps(0, 100)
    for step in range(100, 200):
        often.schedule.optimizer_stepped(step, 1)
        often.steps(step, step + 1)
    assert len(often.steps(200, 300)) < 30

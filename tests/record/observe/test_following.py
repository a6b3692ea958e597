"""Steps of small models that pass without being followed: what is known of the others is as if all were followed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from observing import Seen, observed
from records import end
from support import swept
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.program import outermost
from hookcli.record.file.reading import Record
from hookcli.record.file.views.verdict import judged
from hookcli.record.observe import following, recording_plan
from hookcli.record.observe.epochs import Epochs
from hookcli.record.observe.following import Following
from hookcli.record.observe.recording_plan import RecordingPlan, Schedule
from hookcli.reporters.footer import _verdict
from hookcli.table.losses import LossCourse

PROBES = ("activations", "grads", "updates", "optimizer")
STEPS = 72


@dataclass
class Clock:
    """The program's time, and what hookcli costs, in seconds, which the test moves."""

    seconds: float = 0.0
    cost: float = 0.0
    processor: float = 0.0

    def now(self) -> float:
        return self.seconds

    def count_processor(self, counts: bool) -> None:
        """It is counted by the test."""


def followed(step: float, cost: float, steps: int, **plan: Any) -> list[int]:
    """The steps that are followed of a program whose steps take `step` seconds, and `cost` more if followed."""
    clock = cast(Any, Clock())
    schedule = Schedule(RecordingPlan(**plan), cast(ProgramClock, clock), Epochs())
    chooses = Following(RecordingPlan(**plan), clock, schedule)
    numbers, number = [], 0
    while number < steps:
        schedule.records(number)
        clock.seconds += step
        clock.cost += cost
        numbers.append(number)
        chooses.followed(number)
        passing = chooses.passing(number + 1)
        clock.seconds += passing * step
        number += 1 + passing
        if passing:
            chooses.begin()
    return numbers


@pytest.mark.parametrize(
    ("step", "cost"),
    [(0.061, 0.01), (1.0, 0.5), (0.001, 0.00001), (0.0001, 0.0000009), (0.009, 0.003)],
)
def test_every_step_is_followed_where_the_steps_are_slow_or_following_is_cheap(step: float, cost: float) -> None:
    assert followed(step, cost, 500) == list(range(500))


@pytest.mark.parametrize("cost", [0.00003, swept(0.0001), swept(0.0002), 0.0006])
def test_what_is_followed_of_a_small_model_costs_less_than_one_percent(cost: float) -> None:
    numbers = followed(0.001, cost, 20_000)
    assert numbers[:1000] == list(range(1000))
    late = [number for number in numbers if number >= 10_000]
    assert len(late) * cost <= 0.01 * 10_000 * 0.001
    assert set(range(10_112, 20_000, 64)) <= set(late)  # two runs have steps in common
    assert {10_240, 11_264, 12_288, 16_384, 18_432} <= set(late)  # which the schedule chooses


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def plain(steps: int = STEPS) -> nn.Module:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    return model


def accumulated() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            (model(torch.randn(3, 4)).square().mean() / 2).backward()
        optimizer.step()
    return model


def closures() -> nn.Module:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)
    x = torch.randn(3, 4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return model


def evaluated() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        if number % 29 == 28:
            with torch.no_grad():
                for _ in range(4):
                    model(torch.randn(5, 4))
    return model


def epochs() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(37, 4)))
    for _ in range(3):
        for (x,) in data:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return model


def with_teacher() -> nn.Module:
    model, teacher = net(), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x = torch.randn(3, 4)
        with torch.no_grad():
            wanted = teacher(x)
        optimizer.zero_grad()
        (model(x) - wanted).square().mean().backward()
        optimizer.step()
    return model


@pytest.fixture(autouse=True)
def as_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other tests compiled a program, or left a thread, every step would be followed."""
    monkeypatch.setattr(outermost, "frames_compiled", lambda: 0)
    monkeypatch.setattr(outermost, "other_threads", lambda: False)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    """What is seen of a program where one of so many steps is followed, whatever that takes."""
    monkeypatch.setattr(recording_plan, "_MINUTE", 1e6)
    monkeypatch.setattr(recording_plan, "_AT_ONCE", 1e4)
    monkeypatch.setattr(recording_plan, "_DENSE", 4)
    monkeypatch.setattr(following, "_FIRST", 0)
    monkeypatch.setattr(following, "_QUICK", 0)

    def run(program: Callable[[], object], between: int, **plan: Any) -> Seen:
        monkeypatch.setattr(Following, "between", lambda self: between)
        return observed(program, **({"every": None, "probes": PROBES} | plan))

    return run


def figures(seen: Seen) -> list[Any]:
    """All that is recorded of each step, but for its time."""
    made = []
    for step in seen.recorded:
        rows = [(report.probe, [(row.values, row.stats) for row in report.rows]) for report in step.reports]
        made.append((step.model, step.phase, step.step, step.forward, step.forwards, list(step.losses), rows))
    return made


@pytest.mark.sweep
@pytest.mark.parametrize("program", [accumulated, *map(swept, [evaluated, epochs, plain, closures, with_teacher])])
def test_what_is_recorded_is_the_same_as_where_every_step_is_followed(program, seen) -> None:
    every, some = seen(program, 1), seen(program, 8)
    assert repr(figures(some)) == repr(figures(every))
    for name, run in every.ran.items():
        assert (some.ran[name].steps, some.ran[name].forwards) == (run.steps, run.forwards)
        assert some.ran[name].no_grad_forwards == run.no_grad_forwards
    all_losses, losses = every.every_loss["Sequential"], some.every_loss["Sequential"]
    assert losses.keys() == all_losses.keys() and None not in all_losses.values()
    known = {step: loss for step, loss in losses.items() if loss is not None}
    assert known == {step: all_losses[step] for step in known}
    assert set(some.steps()) <= known.keys() and len(known) < len(losses) / 2
    (note,) = (note for note in some.ran["Sequential"].notes if "is not known" in note)
    assert note.startswith(f"the loss of {len(losses) - len(known)} of {len(losses)} steps is not known")


def spoiled(at: int, factor: float) -> Callable[[], nn.Module]:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for number in range(46):
            optimizer.zero_grad()
            (model(torch.ones(3, 4)).square().mean() * (factor if number >= at else 1.0)).backward()
            optimizer.step()
        return model

    return program


@pytest.mark.sweep
def test_a_loss_that_is_nan_is_found_in_the_next_step_that_is_followed(seen) -> None:
    found = seen(spoiled(37, math.nan), 8)
    assert [(one.step, one.what) for one in found.non_finites] == [(40, "loss")]
    assert {41, 42} <= set(found.steps())  # the two after it


def test_the_steps_after_a_loss_that_jumps_are_recorded(seen) -> None:
    assert {41, 42} <= set(seen(spoiled(37, 1e4), 8).steps())


@pytest.mark.sweep
@pytest.mark.parametrize("plan", [{"every": 50}, swept({"first_bad": "report"}), {"rules": ["loss > 1e9"]}])
def test_every_step_is_followed_where_a_plan_asks_for_it(plan: dict[str, Any], seen) -> None:
    assert None not in seen(lambda: plain(40), 8, **plan).every_loss["Sequential"].values()


def gan() -> nn.Module:
    maker, judge = nn.Linear(2, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (maker, judge)]
    for number in range(40):
        optimizers[number % 2].zero_grad()
        judge(maker(torch.randn(3, 2))).mean().backward()
        optimizers[number % 2].step()
    return maker


@pytest.mark.sweep
def test_every_step_is_followed_where_optimizers_take_turns(seen) -> None:
    some = seen(gan, 8)
    assert figures(some) and None not in some.every_loss["Linear"].values()


@pytest.mark.sweep
def test_a_second_optimizer_made_while_steps_pass_has_all_of_its_steps(seen) -> None:
    def program() -> nn.Module:
        plain(21)
        return plain(20)

    every, some = seen(program, 1), seen(program, 8)
    assert repr(figures(some)) == repr(figures(every))
    assert {name: run.steps for name, run in some.ran.items()} == {name: run.steps for name, run in every.ran.items()}


def test_the_verdict_says_how_many_losses_are_known() -> None:
    course = LossCourse()
    course.add(0, [1.0, None, None, math.nan])
    assert (course.steps, course.unknown) == (2, 2)
    assert course.fault() == "NaN from step 3 on (1 of 2 losses that are known)"
    totals = {"errors": 0, "warnings": 0, "checks": 29, "modules": 5, "steps": 40, "of_steps": 10_000}
    assert _verdict(totals) == "All 29 checks passed (5 modules, 40 of 10,000 steps, and every loss)"
    known = _verdict(totals | {"losses": 352})
    assert known == "All 29 checks passed (5 modules, 40 of 10,000 steps, and 352 of 10,000 losses)"


@pytest.mark.sweep
@pytest.mark.parametrize(("limit", "covered"), [swept(1, 2), (3, 6), (0, 0)])
def test_the_verdict_says_how_many_forwards_without_gradients_were_judged(limit: int, covered: int) -> None:
    def program() -> nn.Module:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for _ in range(3):
                    model(torch.randn(4, 3))
        return model

    seen = observed(program, check=True, every=1, no_grad=limit)
    record = Record(Path("x"), end=end([asdict(seen.ran["Linear"])]))
    last = {step.phase: _verdict(judged(record, step).totals("check")) for step in seen.recorded}
    assert last["train"].endswith(f"2 steps, and {covered} of 6 forwards without gradients)")
    assert last.get("no_grad", "").endswith(f"(1 module, {covered} of 6 forwards without gradients)" * bool(covered))

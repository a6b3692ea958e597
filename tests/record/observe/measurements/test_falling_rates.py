"""A learning rate that falls to 0 while the training goes on, and schedules that are meant to reach it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedules
from torch.optim.optimizer import Optimizer

from hookcli.table import Finding

Schedule = Callable[[Optimizer], Any]


def follow(rate: Callable[[int], float]) -> Schedule:
    return lambda optimizer: schedules.LambdaLR(optimizer, rate)


def found(
    schedule: Schedule, number: int = 20, kind: Callable[..., Optimizer] = torch.optim.SGD, **plan: Any
) -> list[Finding]:
    """The findings of the last recorded step of a training with this schedule."""

    def program() -> nn.Module:
        model = nn.Linear(8, 3)
        optimizer = kind(model.parameters(), lr=0.1)
        scheduler = schedule(optimizer)
        for _ in range(number):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
            scheduler.step()
        return model

    reports = observed(program, check=True, **plan).recorded[-1].reports
    return [one for report in reports for one in report.findings]


class OwnRate(torch.optim.Optimizer):
    """Takes a step of its own size beside the learning rate."""

    def __init__(self, parameters: Iterator[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] + 1e-2)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("schedule", "kind", "since"),
    [
        (follow(lambda step: float(step < 6)), torch.optim.SGD, 6),
        swept(follow(lambda step: max(0.0, 1 - step / 10)), torch.optim.AdamW, 10),
        swept(follow(lambda step: min(step / 4, 1.0) * (step < 10)), torch.optim.Adam, 10),
        swept(lambda optimizer: schedules.StepLR(optimizer, 5, gamma=0.0), torch.optim.SGD, 5),
        (lambda optimizer: schedules.PolynomialLR(optimizer, total_iters=8), torch.optim.SGD, 8),
    ],
)
def test_a_rate_that_falls_to_zero_and_stays_there_is_a_warning(
    schedule: Schedule, kind: Callable[..., Optimizer], since: int
) -> None:
    (finding,) = found(schedule, kind=kind)
    assert (finding.check, finding.severity, finding.value) == ("HK054", "warning", 20 - since)
    said = f"the learning rate is 0 since step {since}: the last {20 - since} recorded steps trained nothing"
    assert finding.message == said and "scheduler" in str(finding.remedy)


@pytest.mark.sweep
def test_a_rate_that_falls_to_next_to_nothing_is_one_if_no_weight_moves() -> None:
    (finding,) = found(follow(lambda step: 1.0 if step < 6 else 1e-20))
    assert finding.message == "the learning rate is 1e-21 since step 6: the last 14 recorded steps trained nothing"
    assert not found(follow(lambda step: 1.0 if step < 6 else 5e-5), kind=torch.optim.Adam)  # which still moves them


def test_steps_that_are_not_recorded_are_not_spoken_of() -> None:
    (finding,) = found(follow(lambda step: float(step < 10)), 60, every=10)
    assert "the last 5 recorded steps" in finding.message


@pytest.mark.sweep
@pytest.mark.parametrize(
    "schedule",
    [
        swept(follow(lambda step: float(step >= 6))),
        follow(lambda step: float(step < 18)),
        swept(follow(lambda step: max(0.0, 1 - step / 19))),
        swept(follow(lambda step: float(step < 5 or step > 12))),
        lambda optimizer: schedules.CosineAnnealingLR(optimizer, 19),
        swept(lambda optimizer: schedules.CosineAnnealingLR(optimizer, 5)),
        swept(lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, 4)),
        swept(lambda optimizer: schedules.OneCycleLR(optimizer, 0.1, 21)),
    ],
)
def test_schedules_that_begin_or_end_at_zero_or_rise_again_are_none(schedule: Schedule) -> None:
    assert not found(schedule)


@pytest.mark.sweep
def test_the_last_tenth_of_a_long_training_may_rest() -> None:
    assert not found(follow(lambda step: float(step < 90)), 100, every=2)
    assert found(follow(lambda step: float(step < 86)), 100, every=2)


@pytest.mark.sweep
def test_an_optimizer_that_moves_weights_at_a_rate_of_zero_is_not_accused() -> None:
    assert not found(follow(lambda step: float(step < 6)), kind=OwnRate)


def of_several(rates: dict[str, Callable[[int], float]], number: int = 20, same: bool = False) -> list[Finding]:
    """HK054 on a training in which each layer has an optimizer of its own, with such a rate in each step."""

    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        kinds = [torch.optim.SGD, torch.optim.SGD if same else torch.optim.Adam]
        optimizers = [kind(model[at].parameters(), lr=0.01) for kind, at in zip(kinds, (0, 2), strict=True)]
        schedulers = [schedules.LambdaLR(one, rates[at]) for one, at in zip(optimizers, "02", strict=True)]
        for _ in range(number):
            model(torch.randn(16, 8)).square().mean().backward()
            for one in (*optimizers, *schedulers):
                one.step()
            model.zero_grad()
        return model

    reports = observed(program, check=True).recorded[-1].reports
    return [one for report in reports for one in report.findings if one.check == "HK054"]


def stays(step: int) -> float:
    return 1.0


def falls(step: int) -> float:
    return float(step < 6)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("rates", "same", "place", "name"),
    [
        ({"0": falls, "2": stays}, False, "0", "SGD"),
        swept({"0": stays, "2": falls}, False, "2", "Adam"),
        swept({"0": stays, "2": falls}, True, "2", "SGD #2"),
    ],
)
def test_the_optimizer_whose_rate_falls_to_zero_is_named(rates: Any, same: bool, place: str, name: str) -> None:
    (finding,) = of_several(rates, same=same)
    said = f"the learning rate of {name}, which has weight, bias, is 0 since step 6: "
    assert (finding.fqn, finding.severity) == (place, "warning") and finding.message.startswith(said), finding.message


@pytest.mark.sweep
def test_a_rate_that_falls_for_all_optimizers_is_said_once() -> None:
    (finding,) = of_several({"0": falls, "2": falls})
    assert finding.message.startswith("the learning rate is 0 since step 6: ")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "other", [swept(stays), lambda step: 0.0, swept(lambda step: float(step >= 6)), swept(lambda step: 1 - step / 20)]
)
def test_several_rates_that_are_meant_are_not_accused(other: Callable[[int], float]) -> None:
    assert of_several({"0": stays, "2": other}) == []

"""Figures where several optimizers, closures or parameters of no module are at work."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from observing import observed, observing, rows
from record.observe.figures import net
from support import assert_stats, each_once, float64_stats
from torch import Tensor, nn

import hookcli
from hookcli.record.file.views.over_time import over_time
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps

EARLY = torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # made before any test begins


@pytest.mark.sweep
def test_two_optimizers_of_one_model() -> None:
    def program() -> nn.Module:
        model = net()
        first, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.01)
        for _ in range(3):
            model(torch.randn(3, 4)).pow(2).sum().backward()
            first.step()
            second.step()
            model.zero_grad()
        return model

    seen = observed(program, every=2)
    assert seen.steps() == [0, 2] and seen.ran["Sequential"].steps == 3
    for recorded in seen.recorded:
        updates, grads = rows(recorded, "updates"), rows(recorded, "grads", "parameter")
        assert updates.keys() == grads.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
        for fqn, row in updates.items():
            rate = 0.1 if fqn.startswith("0") else 0.01
            assert row["update"] == pytest.approx(rate * grads[fqn].stats.l2, rel=1e-3)


@pytest.mark.parametrize(("clear", "every"), each_once(["own", "all"], [1, 2]))
def test_two_optimizers_that_step_in_turns_make_one_step_with_a_loss_each(every: int, clear: str) -> None:
    """As Lightning's manual optimization has them: each after a forward and a backward pass of its own."""
    losses: list[list[float]] = []
    norms: list[float] = []

    def program() -> nn.Module:
        model = net()
        first, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.01)
        losses.clear(), norms.clear()
        for _ in range(5):
            losses.append([])
            for optimizer, scale in ((first, 10.0), (second, 1.0)):
                (optimizer if clear == "own" else model).zero_grad()
                loss = model(torch.randn(3, 4)).pow(2).mean() * scale
                loss.backward()
                norms.extend(p.grad.norm().item() for p in model[0].parameters() if optimizer is first)
                optimizer.step()
                losses[-1].append(loss.item())
        return model

    seen = observed(program, every=every)
    ran = seen.ran["Sequential"]
    assert seen.steps() == [*range(0, 5, every)] and (ran.steps, ran.forwards) == (5, 10)
    for recorded in seen.recorded:
        assert recorded.losses == losses[recorded.step] and recorded.forwards == recorded.observed_forwards == 2
        groups = next(report for report in recorded.reports if report.probe == "optimizer").rows
        assert [row["loss"] for row in groups] == recorded.losses
        assert groups[0]["unclipped_grad"] == pytest.approx(math.hypot(*norms[2 * recorded.step :][:2]), rel=1e-5)
        assert len(rows(recorded, "updates")) == 4 and recorded.complete
    (chart,) = over_time(seen.recorded, "")
    assert [(column.name, column.title) for column in chart.columns if column.name.startswith("loss_")] == [
        ("loss_SGD", "Loss of SGD"),
        ("loss_SGD_2", "Loss of SGD 2"),
    ]
    assert [[row["loss_SGD"], row["loss_SGD_2"]] for row in chart.rows] == losses[::every]


@pytest.mark.sweep
def test_an_optimizer_that_steps_now_and_then_joins_no_step() -> None:
    """But the first one, where nothing is known of it yet: a forward too many is all that this leaves there."""
    losses: list[float] = []

    def program() -> nn.Module:
        model = net()
        often, seldom = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)
        losses.clear()
        for number in range(8):
            model.zero_grad()
            loss = model(torch.randn(3, 4)).pow(2).mean()
            loss.backward()
            losses.append(loss.item())
            (seldom if number % 4 == 3 else often).step()
        return model

    seen = observed(program)
    assert seen.ran["Sequential"].steps == 8 and seen.steps() == [0, *range(2, 8)]
    assert [recorded.losses for recorded in seen.recorded] == [[losses[number]] for number in (0, *range(2, 8))]
    assert [recorded.forwards for recorded in seen.recorded] == [2, 1, 1, 1, 1, 1, 1]


@pytest.mark.sweep
@pytest.mark.usefixtures("all_objects")
def test_one_that_was_there_before_is_found_among_all_objects_of_a_process() -> None:
    steps = OptimizerSteps()
    steps.find_existing()
    assert any(optimizer is EARLY for optimizer in steps)


@pytest.mark.sweep
def test_an_optimizer_that_steps_by_another() -> None:
    class Outer(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            self.inner = torch.optim.SGD(parameters, lr=0.1)
            super().__init__(self.inner.param_groups, {})

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    def program() -> nn.Module:
        model = net()
        optimizer = Outer(list(model.parameters()))
        for _ in range(3):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
        return model

    seen = observed(program)
    assert seen.steps() == [0, 1, 2] and seen.ran["Sequential"].steps == 3
    for recorded in seen.recorded:
        assert recorded.seconds is not None
        updates = rows(recorded, "updates")
        assert set(updates) == {"0.weight", "0.bias", "2.weight", "2.bias"}
        grad = rows(recorded, "grads", "parameter")["2.bias"].stats.l2
        assert updates["2.bias"]["update"] == pytest.approx(0.1 * grad, rel=1e-4)


@pytest.mark.sweep
def test_a_closure_that_runs_the_model_several_times() -> None:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(3))
    evaluated: list[float] = []

    def program(steps: int = 2) -> nn.Module:
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            evaluated.append(loss.item())
            return loss

        for _ in range(steps):
            optimizer.step(closure)
        return model

    seen, before, after = observed(program, every=2), net().double(), program(1).double()
    recorded = seen.only
    assert recorded.step == 0 and seen.ran["Sequential"].steps == 2
    assert recorded.forwards == recorded.observed_forwards >= 3 and len(recorded.losses) == 1
    assert (
        recorded.loss == evaluated[recorded.forwards - 1]
        and len(set(evaluated[: recorded.forwards])) == recorded.forwards
    )
    assert rows(recorded, "activations")["1"]["calls"] == recorded.forwards
    for fqn, row in rows(recorded, "updates").items():
        weight = before.get_parameter(fqn)
        assert row["weight"] == pytest.approx(weight.norm().item(), rel=1e-5)
        assert row["update"] == pytest.approx((after.get_parameter(fqn) - weight).norm().item(), rel=1e-4)
    for fqn, row in rows(recorded, "grads", "parameter").items():
        assert_stats(row.stats, float64_stats(program(1).get_parameter(fqn).grad))  # type: ignore[arg-type]


def test_a_parameter_that_no_module_holds_is_told() -> None:
    """A temperature that the loss is made with: the optimizer has it, and no row can."""

    def program() -> nn.Module:
        model, temperature = net(), nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
        (model(torch.ones(2, 4)).sum() * temperature).backward()
        optimizer.step()
        return model

    assert "SGD has 1 parameter in no module that has run so far; not shown" in observed(program).only.notes


def test_nothing_is_said_of_models_that_nobody_asked_for(tmp_path: Path) -> None:
    first, second = nn.Linear(4, 4), net()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with hookcli.watch(second, every=1, output=tmp_path / "a.jsonl") as recording:
        second(first(torch.ones(2, 4))).sum().backward()
        optimizer.step()
    assert recording.reports() and "has run so far" not in (tmp_path / "a.jsonl").read_text()


@pytest.mark.sweep
def test_two_models_of_one_optimizer_leave_none_over() -> None:
    def program() -> nn.Module:
        first, second = nn.Linear(4, 4), net()
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        second(first(torch.ones(2, 4))).sum().backward()
        optimizer.step()
        return second

    assert not any("module that has run" in note for recorded in observed(program).recorded for note in recorded.notes)


class Wrapper(torch.optim.Optimizer):
    """As Accelerate has it: an optimizer in name, that only hands on to another."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self.optimizer.step(closure)


@pytest.mark.sweep
@pytest.mark.parametrize("how", ["plain", "copied", "wrapped"])
def test_optimizers_that_were_there_before(how: str) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if how == "copied":
        model, optimizer = copy.deepcopy((model, optimizer))
    elif how == "wrapped":
        optimizer = Wrapper(optimizer)
    with observing() as seen:
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
    assert seen.steps() == [0, 1]
    for recorded in seen.recorded:
        assert len(rows(recorded, "updates")) == 4 and recorded.seconds is not None

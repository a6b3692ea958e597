"""Trainings that leave parameters as they are on purpose, which is no error, and those that do so by mistake."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import observed
from torch import Tensor, nn

Program = Callable[[], Any]


def errors(program: Program) -> set[tuple[str, str]]:
    """The check and the place of each error in the last verdict on each model."""
    last = {step.model: step for step in observed(program, check=True, every=1).recorded if step.phase == "train"}
    findings = [one for step in last.values() for report in step.reports for one in report.findings]
    return {(one.check, one.fqn) for one in findings if one.severity == "error"}


class Pair(nn.Module):
    """A body with a second one that gets no gradients, and a layer that is not called."""

    def __init__(self, *, off: bool = True) -> None:
        super().__init__()
        self.body, self.spare = nn.Linear(8, 3), nn.Linear(8, 3)
        self.second, self.off = copy.deepcopy(self.body), off

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.off):
            wanted = self.second(x + 1).detach()
        distance: Tensor = self.body(x) - wanted
        return distance


def a_pair(*, off: bool = True, follows: bool = False) -> nn.Module:
    """An optimizer has all parameters, and the second body `follows` the first by an average of the program's own."""
    model = Pair(off=off)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        for body, second in zip(model.body.parameters(), model.second.parameters(), strict=True):
            second.data.lerp_(body.data, 0.05 * follows)
    return model


@pytest.mark.usefixtures("nothing_compiled")  # else hookcli does not follow parameters to the loss
def test_a_target_a_trunk_without_gradients_and_a_layer_that_is_not_called_are_no_errors() -> None:
    assert errors(a_pair) == errors(lambda: a_pair(follows=True)) == errors(lambda: a_pair(off=False, follows=True))
    assert errors(a_pair) == set()
    assert errors(lambda: a_pair(off=False)) == {("HK008", "second")}, "it may be detached by mistake"


def a_loss_without_weight(*, beside: bool) -> list[nn.Module]:
    """A critic whose loss has the weight 0; `beside` a model that learns."""
    critic, maker = nn.Linear(8, 1), nn.Linear(8, 8)
    made = torch.optim.Adam(maker.parameters(), 0.01)
    judged = torch.optim.Adam(critic.parameters(), 0.01)
    for _ in range(8):
        x = torch.randn(16, 8)
        if beside:
            made.zero_grad()
            (maker(x) - x).square().mean().backward()
            made.step()
        judged.zero_grad()
        (0.0 * critic(x).square().mean()).backward()
        judged.step()
    return [critic, maker]


def test_a_loss_without_weight_is_an_error_where_nothing_else_learns() -> None:
    assert errors(lambda: a_loss_without_weight(beside=True)) == set()
    assert errors(lambda: a_loss_without_weight(beside=False)) == {("HK009", "")}


def of_a_head(*, in_turns: bool) -> nn.Module:
    """A body that no optimizer has, and a head that two have: one after the other, or in turns."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    model.phases = phases = [torch.optim.SGD(model[1].parameters(), 0.05) for _ in range(2)]
    for number in range(24):
        model.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        phases[number % 2 if in_turns else number // 12].step()
    return model


def test_an_optimizer_of_a_second_phase_takes_nothing_from_a_body() -> None:
    assert errors(lambda: of_a_head(in_turns=False)) == set()
    assert errors(lambda: of_a_head(in_turns=True)) == {("HK053", "0")}


def of_images(*, used: bool) -> list[Any]:
    """A network that an optimizer has, with a shift for each of four images, and a critic that no optimizer has."""
    net, critic = nn.Linear(8, 8), nn.Linear(8, 1)
    shifts = [nn.Parameter(torch.zeros(8)) for _ in range(4)]
    optimizer = torch.optim.Adam([*net.parameters(), *shifts], 0.01)
    for number in range(12):
        optimizer.zero_grad()
        shift = shifts[number % 4] if used else torch.zeros(8)
        critic(net(torch.randn(16, 8) + shift)).square().mean().backward()
        optimizer.step()
    return [net, critic, shifts]


def test_parameters_of_other_images_do_not_belong_to_a_layer_that_was_replaced() -> None:
    assert errors(lambda: of_images(used=True)) == set()
    assert errors(lambda: of_images(used=False)) == {("HK053", "")}


class ByItsLoss(torch.optim.SGD):
    """Takes a step of a length that it computes itself, while `lr` is 0."""

    length = 0.05

    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["lr"] = self.length
        super().step(closure)
        self.param_groups[0]["lr"] = 0.0


@pytest.mark.parametrize("length", [0.0, 0.05])
def test_a_learning_rate_of_0_is_no_error_where_the_weights_move(length: float) -> None:
    def program() -> nn.Module:
        model = nn.Linear(8, 3)
        optimizer = ByItsLoss(model.parameters(), 0.0)
        optimizer.length = length
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
        return model

    assert errors(program) == (set() if length else {("HK054", "")})

"""Losses without a graph, on which backward() was made to work; beside trainings in which some losses have none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.learn.test_parts import measured, net
from observing import observed
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.headline import faults
from hookcli.capabilities.learn.judging.misused_loss import MisusedLoss

STEPS = 24
BLIND = "the model runs without gradients (no_grad, set_grad_enabled(False))"
NONE = "no gradient reaches any of the 4 parameters of the optimizer"
Graphs = Callable[[int], bool]


def train(blind: Graphs, made_anew: Graphs = lambda step: False, *, evaluates: bool = False) -> nn.Module:
    """Train: the steps for which `blind` is true under no_grad; others get a loss `made_anew` from its value."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(STEPS):
        model.train(not (evaluates and blind(step)))
        with torch.no_grad() if blind(step) else contextlib.nullcontext():
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(4, (8,)))
        if blind(step) or made_anew(step):
            loss = loss.detach().requires_grad_()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def always(step: int) -> bool:
    return True


def late(step: int) -> bool:
    return step >= 9


def said(program: Callable[[], Any]) -> str:
    return next(faults(measured(observed(program))), "")


def found(program: Callable[[], Any]) -> list[tuple[str, str]]:
    return [(one.severity, one.message) for one in MisusedLoss().judge(measured(observed(program)))]


def test_a_forward_under_no_grad() -> None:
    words = f"{NONE} in any step: {BLIND}"
    assert said(lambda: train(always)).startswith(f"{words}; call the model outside no_grad")
    assert found(lambda: train(always)) == [("error", words)]


def test_since_a_validation_that_leaves_its_modes_behind() -> None:
    assert found(lambda: train(late, evaluates=True)) == [("error", f"{NONE} since step 9: {BLIND} and in eval mode")]


def test_a_loss_from_values_from_some_step_on() -> None:
    words = "the loss is computed from values alone (item(), numpy(), argmax, a comparison)"
    assert found(lambda: train(lambda step: False, late)) == [("error", f"{NONE} since step 9: {words}")]
    assert found(lambda: train(lambda step: False, always)) == [("error", f"{NONE} in any step: {words}")]


def without_targets(step: int) -> bool:
    """Batches without targets, two of them at the end, whose loss is 0 and made anew."""
    return step % 5 == 1 or step > STEPS - 3


def distill() -> nn.Module:
    """A teacher runs under no_grad in each step."""
    teacher, student = net(), net()
    optimizer = torch.optim.SGD(student.parameters(), 0.05)
    for _ in range(STEPS):
        x = torch.randn(8, 6)
        with torch.no_grad():
            target = teacher(x)
        optimizer.zero_grad()
        F.mse_loss(student(x), target).backward()
        optimizer.step()
    return student


def own_parameter() -> nn.Module:
    """One parameter alone is the loss."""
    model = nn.Linear(1, 1, bias=False)
    model.weight = nn.Parameter(torch.tensor([[1.0]]))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        model(torch.ones(1, 1))
        optimizer.zero_grad()
        model.weight.backward()
        optimizer.step()
    return model


def by_hand() -> nn.Module:
    """Gradients of an evolution strategy, which the program writes itself."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        with torch.no_grad():
            model(torch.randn(8, 6))
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    return model


@pytest.mark.parametrize(
    "program", [lambda: train(lambda step: False, without_targets), distill, own_parameter, by_hand]
)
def test_trainings_that_get_gradients(program: Callable[[], Any]) -> None:
    assert not found(program)

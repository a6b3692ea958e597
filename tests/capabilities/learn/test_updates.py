"""Programs that update weights without an optimizer, or along the gradient; each fault beside a correct sibling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from support import swept
from torch import nn
from torch.nn import functional as F  # noqa: N812

STEPS, EVERY = 100, 5
WEIGHTS = "no optimizer has the weights, and the program moves none in 20 recorded steps"


def by_hand(*, in_place: bool, learns: bool = True) -> Callable[[], Any]:
    """A training whose program updates the weights itself, or makes others."""

    def program() -> nn.Module:
        model = nn.Linear(6, 4)
        for _ in range(STEPS):
            x = torch.randn(32, 6)
            y = x[:, :4].argmax(1) if learns else torch.randint(4, (32,))
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p.sub_(0.1 * p.grad) if in_place else p - 0.1 * p.grad
        return model

    return program


@pytest.mark.parametrize(("in_place", "learns"), [(False, True), (True, True), (True, False)])
def test_weights_that_a_program_without_an_optimizer_leaves_as_they_are(in_place: bool, learns: bool) -> None:
    said = all_faults(by_hand(in_place=in_place, learns=learns), every=EVERY)
    assert any(WEIGHTS in text for text in said) is not in_place
    assert any("guessing among 4 classes" in text for text in said) is not (in_place and learns)


def maximizing(sign: int, *, maximizes: bool) -> Callable[[], Any]:
    """A training whose optimizer minimizes or `maximizes` a cross-entropy with this sign."""

    def program() -> nn.Module:
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, maximize=maximizes)
        for _ in range(STEPS):
            x = torch.randn(32, 6)
            optimizer.zero_grad()
            (sign * F.cross_entropy(model(x), x[:, :4].argmax(1))).backward()
            optimizer.step()
        return model

    return program


@pytest.mark.parametrize("maximizes", [True, False])
def test_an_optimizer_that_maximizes_a_loss(maximizes: bool) -> None:
    said = all_faults(maximizing(1, maximizes=maximizes), every=EVERY)
    assert all(("(maximize=True)" in text) is maximizes for text in said)
    assert bool(said) is maximizes


def test_a_reward_may_be_maximized() -> None:
    assert not all_faults(maximizing(-1, maximizes=True), every=EVERY)


@pytest.mark.parametrize(("rate", "norm"), [(10.0, True), (0.1, True), swept(0.1, False)])
def test_a_first_step_that_moves_the_weights_by_much_of_their_size(rate: float, norm: bool) -> None:
    """A normalization hides a learning rate that is far too high: the loss does not run away."""

    def program() -> nn.Module:
        torch.manual_seed(1)
        layers = [nn.Linear(16, 64), nn.BatchNorm1d(64) if norm else nn.Identity(), nn.ReLU(), nn.Linear(64, 10)]
        model = nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
        for _ in range(STEPS):
            x = torch.randn(64, 16)
            y = x[:, :10].argmax(1) if rate < 1 else torch.randint(10, (64,))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model

    said = " ".join(all_faults(program, every=EVERY))
    assert said.startswith("the first step moved the weights by") is (rate > 1)
    assert bool(said) is (rate > 1)


@pytest.mark.parametrize(("factor", "said"), [(1e-4, True), (0.5, False)])
def test_a_scheduler_that_returns_a_rate_where_a_factor_is_meant(factor: float, said: bool) -> None:
    def program() -> nn.Module:
        model = nn.Linear(16, 10)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor * (1 - step / 100))
        for _ in range(60):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(64, 16)), torch.randint(10, (64,))).backward()
            optimizer.step()
            scheduler.step()
        return model

    (text,) = all_faults(program, every=EVERY)
    assert text.startswith("the steps are too small (learning rate ")
    assert (": the scheduler multiplies the optimizer's 0.001 by 0.0001 at most)" in text) is said

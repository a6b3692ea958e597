"""Programs that update weights without an optimizer, or along the gradient; each fault beside a correct sibling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.learn.test_misused import all_faults
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

"""A Tanh or Sigmoid at its bounds is named as the cause of a loss that stays; another one is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_parts import measured
from observing import observed
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.headline import faults

STEPS = 120


def train(activation: nn.Module, gain: float, *, labels: bool = True) -> nn.Module:
    """Train two layers with this activation between them, whose first weights are so many times as large as usual."""
    model = nn.Sequential(nn.Linear(8, 32), activation, nn.Linear(32, 4))
    with torch.no_grad():
        model[0].weight.mul_(gain)
        model[2].weight.zero_()
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
    for _ in range(STEPS):
        x = torch.randn(64, 8)
        y = x[:, :4].argmax(1) if labels else torch.randint(4, (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("activation", "bounds"), [(nn.Tanh(), "-1 and 1"), (nn.Sigmoid(), "0 and 1"), (nn.Hardtanh(), "-1 and 1")]
)
def test_an_activation_at_its_bounds_is_the_cause(activation: nn.Module, bounds: str) -> None:
    texts = [*faults(measured(observed(lambda: train(activation, 1e4), every=6)))]
    words = f"1 ({type(activation).__name__}) is saturated: nearly all that it returns is at its bounds, {bounds}"
    assert any(words in one for one in texts)


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Sigmoid(), nn.ReLU()])
def test_others_are_not(activation: nn.Module) -> None:
    texts = [*faults(measured(observed(lambda: train(activation, 1.0), every=6)))]
    assert texts and not any("saturated" in one for one in texts)


def deep(activation: Callable[[], nn.Module], layers: int) -> nn.Module:
    """Train so many layers on labels that nothing tells."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(16, 16), activation())]
    model = nn.Sequential(*hidden, nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        x = torch.randn(64, 16)
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(4, (64,))).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(("activation", "layers"), [(nn.Sigmoid, 12), (nn.Sigmoid, 2), (nn.Identity, 12)])
def test_gradients_that_vanish_are_the_cause(activation: Callable[[], nn.Module], layers: int) -> None:
    text = "".join(faults(measured(observed(lambda: deep(activation, layers), every=6))))
    expected = "gradients vanish on their way to the input: that of "
    assert "guessing among 4 classes" in text
    assert (expected in text) is (activation is nn.Sigmoid and layers > 10)

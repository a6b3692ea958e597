"""Models that are evaluated in training mode, and other forwards without gradients, which may be meant so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from observing import observed
from torch import nn
from torch.nn import functional as F  # noqa: N812

STEPS, SIZE = 20, 16
WORDS = "forwards without gradients ran in training mode"
Evaluates = Callable[[nn.Module, int], object]


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 4))


def train(model: nn.Module, evaluates: Evaluates) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(STEPS):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(SIZE, 6)), torch.randint(4, (SIZE,))).backward()
        optimizer.step()
        with torch.no_grad():
            evaluates(model, step)
    return model


def every_fifth(model: nn.Module, step: int) -> None:
    if step % 5 == 4:
        model(torch.randn(SIZE, 6))


def in_eval_mode(model: nn.Module, step: int) -> None:
    model.eval()
    every_fifth(model, step)


def sometimes(model: nn.Module, step: int) -> None:
    """In training mode at the end alone, such as to gather statistics anew."""
    if step < STEPS - 1:
        model.eval()
    every_fifth(model, step)


def in_each_step(model: nn.Module, step: int) -> None:
    """As a generator makes images for its discriminator."""
    model(torch.randn(SIZE, 6))


def notes(layers: Callable[[], list[nn.Module]], evaluates: Evaluates) -> str:
    seen = observed(lambda: train(net(*layers()), evaluates))
    return " ".join(seen.ran["Sequential"].notes)


def test_a_model_that_is_evaluated_in_training_mode_is_noted() -> None:
    said = notes(lambda: [nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5)], every_fifth)
    which = "in which 1 (BatchNorm1d) and 1 more module act otherwise than in eval mode"
    assert f"4 {WORDS}, {which}: call model.eval() before evaluating, unless that is meant" in said
    alone = notes(lambda: [nn.Dropout(0.5)], every_fifth)
    assert f"4 {WORDS}, in which 1 (Dropout) acts otherwise" in alone


@pytest.mark.parametrize("evaluates", [in_eval_mode, sometimes, in_each_step])
def test_other_evaluations_are_not_noted(evaluates: Evaluates) -> None:
    assert WORDS not in notes(lambda: [nn.BatchNorm1d(8)], evaluates)


def test_a_model_that_acts_alike_in_both_modes_is_not_noted() -> None:
    assert WORDS not in notes(lambda: [nn.Tanh(), nn.Dropout(0.0)], every_fifth)

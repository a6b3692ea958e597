"""Averages of weights that are evaluated with the statistics that a BatchNorm begins with, and copies that are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from capabilities.learn.test_parts import measured
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from hookcli.capabilities.learn.judging.headline import faults

STEPS, SIZE = 12, 32
TEMPLATES = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
Averaged = Callable[[nn.Module], nn.Module]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def batch(size: int = SIZE) -> tuple[Tensor, Tensor]:
    labels = torch.randint(4, (size,))
    return TEMPLATES[labels] + 0.5 * torch.randn(size, 6), labels


def averaged(model: nn.Module, *, buffers: bool = False) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=buffers)


class OfParameters(nn.Module):
    """An average of the parameters alone, as many programs write it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(model)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        for own, p in zip(self.module.parameters(), model.parameters(), strict=True):
            own.lerp_(p, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.module(x)
        return scores


def train(other: Averaged, *, last: Callable[[nn.Module], object] | None = None) -> Tensor:
    """Train, and evaluate the `other` model, made of this one at first, after the last step."""
    model = net()
    average = other(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        model.train()
        x, labels = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
        if isinstance(average, (AveragedModel, OfParameters)):
            average.update_parameters(model)
    if last is not None:
        last(average)
    average.eval()
    with torch.no_grad():
        scores: Tensor = average(batch(256)[0])
    return scores


def said(program: Callable[[], object]) -> str:
    return next(faults(measured(observed(program))), "")


def test_an_average_without_the_statistics_is_named() -> None:
    text = said(partial(train, OfParameters))
    assert "1 (BatchNorm1d) had trained weights, but the statistics that every BatchNorm begins with" in text
    assert text.endswith("copy buffers() with parameters(), as torch.optim.swa_utils.AveragedModel does")


def copied(model: nn.Module) -> nn.Module:
    """A copy of the weights and statistics."""
    return copy.deepcopy(model)


def of_other_sizes(model: nn.Module) -> nn.Module:
    """A model of its own, whose normalization has a bias by hand."""
    other = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))
    nn.init.constant_(other[1].bias, 0.1)
    return other


def of_other_weights(model: nn.Module) -> nn.Module:
    """A random target, as of random network distillation, whose normalization has a drawn bias."""
    other = net()
    nn.init.normal_(other[1].bias)
    return other


def same(model: nn.Module) -> nn.Module:
    return model


def with_statistics(average: nn.Module) -> None:
    update_bn([batch()[0] for _ in range(3)], average)


@pytest.mark.parametrize(
    ("other", "last"),
    [
        (averaged, None),
        (OfParameters, with_statistics),
        swept(partial(averaged, buffers=True), None),
        swept(copied, None),
        swept(of_other_sizes, None),
        (of_other_weights, None),
        swept(same, None),
    ],
)
def test_other_evaluations_are_not_accused(other: Averaged, last: Callable[[nn.Module], object] | None) -> None:
    """Statistics that are copied, gathered at the end, or averaged; the model as it began; another; itself."""
    assert not said(partial(train, other, last=last))

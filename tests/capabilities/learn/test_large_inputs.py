"""Inputs that nobody has scaled, such as pixels of 0 to 255: named where nothing is learned, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.learn.test_same_inputs import measured
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.headline import faults
from hookcli.capabilities.learn.lines import Learning

STEPS = 120


def pixels() -> tuple[Tensor, Tensor]:
    """Images of one bright quarter each, of 0 to 255, and which it is."""
    y = torch.randint(4, (64,))
    x = torch.randint(0, 120, (64, 1, 8, 8)).float()
    for image, quarter in zip(x, y.tolist(), strict=True):
        row, column = divmod(quarter, 2)
        image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 100
    return x, y


class Convnet(nn.Module):
    def __init__(self, *, scales: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.scales = scales
        self.norm = nn.BatchNorm2d(1) if norm else nn.Identity()
        self.c1, self.c2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.fc1, self.fc2 = nn.Linear(512, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x / 255 if self.scales else x)
        x = F.relu(self.c2(F.relu(self.c1(x))))
        scores: Tensor = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return scores


def train(model: nn.Module, made: Callable[..., Any], *, shuffled: bool = False, **settings: float) -> nn.Module:
    optimizer = made(model.parameters(), **settings)
    for _ in range(STEPS):
        x, y = pixels()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y[torch.randperm(64)] if shuffled else y).backward()
        optimizer.step()
    return model


def words(program: Callable[[], Any]) -> list[str]:
    return [text for text in faults(measured(program)) if "the inputs are large" in text]


@pytest.mark.parametrize(
    ("program", "after"),
    [
        (lambda: train(Convnet(), torch.optim.SGD, lr=0.1, momentum=0.9), "), and the loss ran away: scale them"),
        swept(lambda: train(Convnet(), torch.optim.Adam, shuffled=True, lr=1e-4), ")"),  # which can't be told apart
    ],
)
def test_pixels_that_are_not_scaled(program: Callable[[], Any], after: str) -> None:
    (text,) = words(program)
    size = float(text.partition("mean square ")[2].partition(")")[0])
    assert 90 < size < 115 and text.endswith(after)  # sqrt(E x²), where x is 0..119 or, in one quarter, 100..219: 104


def test_what_the_first_weights_receive_counts() -> None:
    def entered(model: nn.Module) -> float:
        known = measured(lambda: train(model, torch.optim.SGD, lr=0.0))
        return max(line.entered for line in known.lines[Learning.kind] if isinstance(line, Learning))

    assert 90 < entered(Convnet()) < 115
    assert 0.3 < entered(Convnet(scales=True)) < 0.5 and entered(Convnet(norm=True)) == 0


@pytest.mark.parametrize(
    "program",
    [
        lambda: train(Convnet(), torch.optim.Adam, lr=1e-4),  # pixels with which it learns
        swept(lambda: train(Convnet(scales=True), torch.optim.SGD, lr=10.0, momentum=0.9)),  # the rate is too high
        swept(lambda: train(Convnet(norm=True), torch.optim.SGD, lr=30.0, momentum=0.9)),
    ],
)
def test_inputs_that_are_not_the_cause(program: Callable[[], Any]) -> None:
    assert not words(program)


@pytest.mark.parametrize(("scale", "both"), [(400_000.0, True), (1.0, False)])
def test_targets_as_large_as_the_inputs_are_told_as_well(scale: float, both: bool) -> None:
    def program() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(STEPS):
            x = 1e4 * (2 + torch.randn(64, 4))
            optimizer.zero_grad()
            F.mse_loss(model(x), scale * (1 + 0.3 * torch.randn(64, 1))).backward()
            optimizer.step()
        return model

    (text,) = words(program)
    assert ("and so are the targets (" in text) is both
    assert "on average, and the targets" not in text

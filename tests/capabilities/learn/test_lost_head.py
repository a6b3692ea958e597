"""A loss of the features that a head receives, beside heads that a training may leave as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

STEPS, WIDTH, CLASSES = 12, 16, 4


class Net(nn.Module):
    """Returns the features, and the scores of a head; `more`: what is between them."""

    def __init__(self, *more: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU())
        self.more, self.head = nn.Sequential(*more), head or nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(self.more(features))


def train(model: nn.Module, loss_of: Callable[..., Tensor], classes: int = CLASSES) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        x = torch.randn(32, 6)
        optimizer.zero_grad()
        loss_of(model(x), x[:, :classes].argmax(1)).backward()
        optimizer.step()
    return model


def of_features(outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], y)


TEXT = "cross_entropy gets the 16 columns that head receives, not the 4 that it returns: no gradient reaches head"


@pytest.mark.parametrize(
    ("model", "loss_of"),
    [
        (Net, of_features),
        swept(lambda: Net(nn.Dropout(0.2)), of_features),
        swept(lambda: Net(nn.Unflatten(1, (WIDTH, 1)), nn.Flatten()), of_features),
        swept(Net, lambda outputs, y: of_features(outputs, y) / 2),
    ],
)
def test_a_head_that_the_loss_leaves_out(model: Callable[[], nn.Module], loss_of: Callable[..., Tensor]) -> None:
    assert TEXT in all_faults(lambda: train(model(), loss_of))


class Cascade(nn.Module):
    """A coarse choice, of which a second layer, trained later, makes another."""

    def __init__(self, fine: int) -> None:
        super().__init__()
        self.coarse, self.fine = nn.Linear(6, CLASSES), nn.Linear(CLASSES, fine)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        coarse = self.coarse(x)
        return coarse, self.fine(coarse)


class Tasks(nn.Module):
    """A head for each of two tasks, of which the last one trains in turns, or later."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.last = nn.Linear(6, WIDTH), nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x).relu()
        return self.first(x), self.last(x)


class Turns:
    """The first loss, but in every fifth step that of the head."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        self.steps += 1
        return F.cross_entropy(outputs[self.steps % 5 == 3], y)


def frozen() -> nn.Module:
    model = Net()
    model.head.requires_grad_(False)
    return model


class Measured(Net):
    """A head that only measures the features, which it gets without their graph."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features.detach())


@pytest.mark.parametrize(
    ("model", "loss_of", "classes"),
    [
        (Net, lambda outputs, y: F.cross_entropy(outputs[1], y), CLASSES),
        swept(Net, lambda outputs, y: of_features(outputs, y) + F.cross_entropy(outputs[1], y), CLASSES),
        (Net, Turns, CLASSES),
        (Tasks, of_features, CLASSES),
        swept(Tasks, Turns, 3),
        (lambda: Cascade(8), of_features, CLASSES),
        (lambda: Cascade(3), of_features, CLASSES),
        (frozen, of_features, CLASSES),
        swept(Measured, of_features, CLASSES),
        swept(Net, lambda outputs, y: F.mse_loss(outputs[0], torch.ones_like(outputs[0])), CLASSES),
        swept(lambda: Net(head=nn.Linear(WIDTH, WIDTH)), of_features, CLASSES),
    ],
)
def test_heads_that_a_training_may_leave(model: Any, loss_of: Any, classes: int) -> None:
    def program() -> nn.Module:
        return train(model(), Turns() if loss_of is Turns else loss_of, classes)

    assert not [text for text in all_faults(program) if "that it returns" in text]

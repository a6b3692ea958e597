"""Labels that all are one class though the loss falls slowly, as masks that lost their classes on the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

STEPS, CLASSES, SIZE = 60, 4, 6
ONE = f"all labels are class 0 of {CLASSES} in each of {STEPS} recorded steps: the loss went from "


class Dense(nn.Module):
    """Scores for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


class Pairs(nn.Module):
    """Scores of one right choice, which is the first, and of others: as many as there are classes elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * SIZE * SIZE, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        a, b = (F.normalize(self.layer(one.flatten(1)), dim=1) for one in (x, x + 0.1 * torch.randn_like(x)))
        others = torch.randn(16, CLASSES - 1)
        return torch.cat([(a * b).sum(1, keepdim=True), a @ F.normalize(others, dim=0)], 1)


def trained(make: Callable[[], nn.Module], labels: Callable[[Tensor], Tensor], steps: int = STEPS) -> nn.Module:
    model = make()
    rate = 1e-3 if labels is lost and make is not frozen else 0.01  # the loss of one class does not fall to nothing
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), rate)
    for _ in range(steps):
        x = torch.randn(16, 3, SIZE, SIZE)
        scores = model(x)
        optimizer.zero_grad()
        F.cross_entropy(scores, labels(x)[: len(scores)]).backward()
        optimizer.step()
    return model


def lost(x: Tensor) -> Tensor:
    """Classes 0 to 3, scaled to 0 to 1 as an image is, and then made whole numbers."""
    return (known(x) / 255).long()


def known(x: Tensor) -> Tensor:
    return torch.where(x[:, 0] > 0.5, 1, 0) + torch.where(x[:, 1] > 0.5, 2, 0)


def frozen() -> nn.Module:
    """As of an attack with a target: the first layer is what learns."""
    model = Dense()
    model.layers[2].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "labels", "expected"),
    [
        (Dense, lost, True),
        (Dense, known, False),
        (frozen, lost, False),
        swept(
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, CLASSES)), lambda x: lost(x)[:, 0, 0], True
        ),
        (Pairs, lambda x: lost(x)[:, 0, 0], False),
    ],
)
def test_labels_that_are_all_one_class(
    make: Callable[[], nn.Module], labels: Callable[[Tensor], Tensor], expected: bool
) -> None:
    text = "".join(all_faults(lambda: trained(make, labels)))
    assert (ONE in text) is expected, text
    assert expected or not text


def test_few_steps_may_have_one_class_by_chance() -> None:
    assert not all_faults(lambda: trained(Dense, lost, 15))

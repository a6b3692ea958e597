"""Inputs that tell the model nothing, as all of their rows are the same, beside constants that are meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from hookcli.capabilities.learn.judging.checks import SameBatch
from hookcli.capabilities.learn.judging.headline import faults
from hookcli.capabilities.learn.judging.loss_checks import NoBetterThanGuessing
from hookcli.capabilities.learn.judging.misused_loss import MisusedLoss
from hookcli.capabilities.learn.lines import LINES
from hookcli.checks.measurements import Measurements
from hookcli.table.losses import LossCourse

STEPS, EVERY, ROWS = 120, 10, 64
Inputs = Callable[[Tensor], Tensor]
LossOf = Callable[[Tensor, Tensor], Tensor]


def measured(program: Callable[[], Any]) -> Measurements:
    seen = observed(program, every=EVERY)
    losses = {step: loss for of in seen.every_loss.values() for step, loss in of.items() if loss is not None}
    lines = {kind.kind: [line for line in seen.of_parts if isinstance(line, kind)] for kind in LINES}
    return Measurements(losses=LossCourse.of(losses), every_loss=losses, lines=lines)


def classes(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


def train(model: nn.Module, change: Callable[[Tensor], Any], loss_of: LossOf | None = None) -> nn.Module:
    """Train with what `change` makes of random rows; the targets follow from the rows as they were."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(STEPS):
        x = torch.randn(ROWS, 6)
        optimizer.zero_grad()
        output = model(*given) if isinstance(given := change(x), tuple) else model(given)
        (loss_of(output, x) if loss_of else F.cross_entropy(output, classes(x))).backward()
        optimizer.step()
    return model


def net(*middle: nn.Module, width: int = 6, bias: bool = True) -> nn.Sequential:
    head = nn.Linear(16, 4, bias=bias)
    return nn.Sequential(nn.Linear(width, 16, bias=bias), nn.ReLU(), *middle, head)


class Noisy(nn.Module):
    """Draws its noise itself, and takes its input for the shape alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(8), nn.Linear(8, 6)

    def forward(self, ones: Tensor) -> Tensor:
        result: Tensor = self.last(self.norm(torch.randn(len(ones), 8)))
        return result


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(8, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        result: Tensor = self.last(x + (more if more.is_floating_point() else self.embedding(more)))
        return result


def squared(output: Tensor, x: Tensor) -> Tensor:
    return F.mse_loss(output, x[:, : output.shape[1]])


def loaded() -> nn.Module:
    """Batches of a loader that shuffles rows which are all zero, as those of integers after a division."""
    rows = torch.randint(0, 255, (256, 6), dtype=torch.uint8)
    data = TensorDataset((rows // 255).float(), torch.randint(4, (256,)))
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(STEPS * ROWS // 256):
        for x, y in DataLoader(data, ROWS, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def per_column(x: Tensor) -> Tensor:
    return torch.arange(6.0).expand_as(x) / 6


@pytest.mark.parametrize(
    ("program", "what"),
    [
        swept(loaded, "every input is 0"),
        (lambda: train(net(), lambda x: torch.full_like(x, -0.5)), "every input is -0.5000"),
        swept(lambda: train(net(nn.Dropout(0.5)), lambda x: 0 * x), "every input is 0"),
        swept(lambda: train(net(), lambda x: 0 * x, squared), "every input is 0"),
        swept(lambda: train(net(), per_column), "all rows of a batch are the same"),
        swept(lambda: train(Two(), lambda x: (0 * x, torch.zeros(ROWS, dtype=torch.long))), "every input is 0"),
        swept(lambda: train(Two(), lambda x: (0 * x, 0 * x + 1)), "all rows of a batch are the same"),
    ],
)
def test_the_first_line_names_inputs_that_are_all_the_same(program: Callable[[], Any], what: str) -> None:
    known = measured(program)
    recorded = STEPS // EVERY
    first = next(faults(known), "")
    assert first.startswith(
        f"{what} in each of {recorded} recorded steps: the last {STEPS // 4} losses have a mean of "
    ), first
    assert [one.message for one in MisusedLoss().judge(known)] == [first]
    assert not [*NoBetterThanGuessing().judge(known)]
    assert not [*SameBatch().judge(known)]


@pytest.mark.sweep
def test_they_are_named_where_no_gradient_is_left() -> None:
    first = next(faults(measured(lambda: train(net(bias=False), lambda x: 0 * x))), "")
    zero = f"the optimizer has changed no weight in {STEPS // EVERY} recorded steps: every gradient is zero"
    assert first == f"{zero}, and every input is 0 in each of {STEPS // EVERY} recorded steps"


def boundary(output: Tensor, x: Tensor) -> Tensor:
    return F.mse_loss(output, torch.full_like(output, 0.3))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "program",
    [
        lambda: train(net(), lambda x: x[torch.randperm(ROWS)]),  # the labels do not belong to the rows
        lambda: train(net(width=1), lambda x: torch.ones(ROWS, 1), squared),  # an intercept
        swept(lambda: train(net(), lambda x: torch.ones(ROWS, 6), boundary)),
        lambda: train(Noisy(), lambda x: torch.ones(ROWS, 6), squared),
        lambda: train(Two(), lambda x: (x[torch.randperm(ROWS)], 0 * x)),  # padding beside the input
        lambda: train(Two(), lambda x: (0 * x, torch.randint(8, (ROWS,)))),
        swept(lambda: train(net(), lambda x: torch.ones_like(x[:1]), lambda out, x: squared(out, x[:1]))),
    ],
)
def test_other_inputs_are_not_accused(program: Callable[[], Any]) -> None:
    texts = [*faults(measured(program))]
    assert not [text for text in texts if "every input" in text or "all rows" in text], texts

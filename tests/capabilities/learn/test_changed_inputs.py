"""Data that the program changes in place, more in each epoch: named where nothing is learned, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_parts import measured
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.changed_inputs import changed_inputs
from hookcli.capabilities.learn.judging.headline import faults
from hookcli.capabilities.learn.lines import Learning

EPOCHS, BATCHES, ROWS = 20, 4, 32
ASKS = "does the program change its data in place?"
LOST = "the inputs have lost their values"
GONE = "the standard deviation of the inputs has gone from"
Change = Callable[[Tensor, int], Tensor]


def said(change: Change, *first: type[nn.Module], learnable: bool = True) -> list[str]:
    """What is said of these inputs, where `change` gets each batch of the data and the number of the epoch."""

    def program() -> nn.Module:
        data = torch.randn(BATCHES, ROWS, 24) + 1
        labels = (data - 1)[..., :4].argmax(2) if learnable else torch.randint(4, (BATCHES, ROWS))
        model = nn.Sequential(*(one(24) for one in first), nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 4))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for epoch in range(EPOCHS):
            for x, y in zip(data, labels, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(model(change(x, epoch)), y).backward()
                optimizer.step()
        return model

    return [text for text in faults(measured(observed(program))) if ASKS in text]


def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, epoch: x.mul_(torch.rand(24) > 0.4), LOST),
        (lambda x, epoch: x.sub_(1).div_(4), GONE),
        swept(lambda x, epoch: x.zero_() if epoch > 1 else x, LOST),
        swept(lambda x, epoch: x.mul_(4 * torch.randn(24).sign()), GONE),
    ],
)
def test_data_that_are_changed_in_place(change: Change, words: str) -> None:
    (text,) = said(change)
    assert words in text


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda x, epoch: x * (torch.rand(24) > 0.4), ()),  # a copy
        (lambda x, epoch: scaled(x, 0.7**epoch), (nn.LayerNorm,)),  # ever smaller, and normalized by the model
        swept(lambda x, epoch: scaled(x, 1.6**epoch), (nn.LayerNorm,)),
        swept(lambda x, epoch: x * (torch.arange(24) < epoch + 1), ()),  # ever more of each row
    ],
)
def test_inputs_with_which_it_learns(change: Change, first: tuple[type[nn.Module], ...]) -> None:
    assert not said(change, *first)


def test_labels_by_chance_do_not_blame_inputs_that_stay() -> None:
    assert not said(lambda x, epoch: x, learnable=False)


@pytest.mark.parametrize(("shares", "named"), [((0.3, 0.1, 0.05, 0.0), True), ((0.7, 0.7, 0.7, 0.0), False)])
def test_one_last_step_tells_after_ever_fewer_values(shares: tuple[float, ...], named: bool) -> None:
    """A single batch of zeros may be padding."""
    lines = [Learning("Net", step, dense=share, inputs=1.0) for step, share in enumerate((0.7, 0.7, 0.7, *shares))]
    assert (LOST in changed_inputs(lines)) is named

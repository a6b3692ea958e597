"""Losses that expect targets of 1 and -1, and get 0 and 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

LOSSES: dict[str, tuple[str, Loss]] = {
    "cosine": ("cosine_embedding_loss", lambda a, b, y: F.cosine_embedding_loss(a, b, y, margin=0.2)),
    "summed": ("cosine_embedding_loss", lambda a, b, y: F.cosine_embedding_loss(a, b, y, reduction="sum") / 32),
    "embedding": ("hinge_embedding_loss", lambda a, b, y: F.hinge_embedding_loss((a - b).norm(dim=1), y)),
    "ranking": ("the margin loss", lambda a, b, y: F.margin_ranking_loss(a[:, 0], b[:, 0], y, margin=0.5)),
    "soft": ("soft_margin_loss", lambda a, _, y: F.soft_margin_loss(a[:, 0], y)),
    "hinge": ("the margin loss", lambda a, _, y: F.relu(1 - y * a[:, 0]).mean()),
}


def train(loss_of: Loss, targets: Callable[[Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(16):
        a, b = torch.randn(32, 6), torch.randn(32, 6)
        optimizer.zero_grad()
        loss_of(model(a), model(b), targets((a[:, 0] > b[:, 0]).float())).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(("name", "loss_of"), LOSSES.values(), ids=LOSSES)
def test_targets_of_0_and_1_are_named_where_1_and_minus_1_are_expected(name: str, loss_of: Loss) -> None:
    (found,) = (line for line in all_faults(lambda: train(loss_of, lambda y: y)) if name in line)
    assert "neither 1 nor -1, and no target is -1: give it 2 * target - 1" in found


@pytest.mark.parametrize(("name", "loss_of"), LOSSES.values(), ids=LOSSES)
def test_signs_are_right_and_so_are_pairs_left_out_by_0(name: str, loss_of: Loss) -> None:
    def some_unknown(y: Tensor) -> Tensor:
        return (2 * y - 1) * (torch.arange(len(y)) % 2)

    for targets in (lambda y: 2 * y - 1, some_unknown, torch.ones_like):
        assert not [line for line in all_faults(lambda t=targets: train(loss_of, t)) if "nor -1" in line]

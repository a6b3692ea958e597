"""Models and programs whose losses are known."""

from __future__ import annotations

import torch
from torch import Tensor, nn

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(3))


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).pow(2).mean()


def none(model: nn.Module) -> None:
    model.zero_grad()


def zero(model: nn.Module) -> None:
    model.zero_grad(set_to_none=False)


def by_hand(model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.zero_()  # no version tells of it


CLEARING = [none, zero, by_hand]

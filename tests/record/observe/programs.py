"""Programs that train."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def training(steps: int = 7) -> Callable[[], nn.Module]:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).pow(2).mean().backward()
            optimizer.step()
        return model

    return program

"""A program's parts that take known times, on a clock that only they move."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

DATA, FORWARD, BACKWARD, OPTIMIZER, REST = 1.0, 2.0, 4.0, 8.0, 16.0
now = [0.0]


def take(seconds: float) -> None:
    now[0] += seconds


class SlowData(Dataset[Tensor]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Tensor:
        take(DATA)
        return torch.ones(4)


class Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        take(FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        take(BACKWARD)
        return grad


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = Take.apply(x)
        return found


class SlowSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        take(OPTIMIZER)
        super().step(closure)

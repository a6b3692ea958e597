"""A classifier in which a learning rate that was too high has killed a layer: its bias is far below zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 14 * 14, 64), nn.ReLU(), nn.Linear(64, 10))
        with torch.no_grad():
            body = self.body[0].bias
            assert body is not None
            body[:28] -= 5

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.stem(x)))
        return out

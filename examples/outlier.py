"""A small transformer's blocks; in one of them a channel is far larger than the others, as in large language models."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return out


class Net(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.head = nn.Linear(width, 10)
        with torch.no_grad():
            self.blocks[1].norm.weight[5] = 200.0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(x).mean(1))
        return out

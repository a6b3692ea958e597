"""A network that runs in float32 and overflows in float16: it sums squares of values in the hundreds."""

from __future__ import annotations

from torch import Tensor, nn


class Energy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square()


class Spectrogram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Conv1d(1, 32, 64, stride=16, bias=False)
        self.energy = Energy()
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 10)
        nn.init.normal_(self.filters.weight, std=12.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.energy(self.filters(x))).mean(-1))
        return out

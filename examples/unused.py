"""A network with a head that forward does not use, and a dropout that it does not call."""

from __future__ import annotations

from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.act = nn.ReLU()
        self.drop = nn.Dropout()
        self.aux = nn.Linear(8, 4)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.act(self.conv(x)).mean((2, 3)))
        return out

"""A network before it was refactored; see after.py."""

from __future__ import annotations

from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.act1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect")
        self.norm2 = nn.BatchNorm2d(16)
        self.act2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.fc = nn.Linear(16 * 8 * 8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.act1(self.norm1(self.conv1(x))))
        x = self.pool2(self.act2(self.norm2(self.conv2(x))))
        out: Tensor = self.fc(x.flatten(1))
        return out

"""A classifier that learns in 80 steps, and three ways in which it does not: python learn.py kept|slow|labels."""

from __future__ import annotations

import sys

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out


def main(fault: str = "none") -> None:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6 if fault == "slow" else 0.2, momentum=0.9)
    centers = torch.randn(4, 8)
    for _ in range(80):
        y = torch.randint(4, (64,))
        x = centers[y] + torch.randn(64, 8)
        if fault == "labels":
            y = y[torch.randperm(64)]
        if fault != "kept":
            optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])

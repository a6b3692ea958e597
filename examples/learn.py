"""A classifier that learns in 80 steps, and ways in which it does not: python learn.py kept|slow|labels|same|cut."""

from __future__ import annotations

import sys

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.cut = cut
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        out: torch.Tensor = self.head(x.detach() if self.cut else x)
        return out


def main(fault: str = "none") -> None:
    torch.manual_seed(0)
    model = Classifier(cut=fault == "cut")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6 if fault == "slow" else 0.2, momentum=0.9)
    labels = torch.randint(4, (512,))
    inputs = torch.randn(4, 8)[labels] + torch.randn(512, 8)
    if fault == "labels":
        labels = labels[torch.randperm(512)]
    for step in range(80):
        torch.manual_seed(0 if fault == "same" else step)
        rows = torch.randint(512, (64,))
        x, y = inputs[rows], labels[rows]
        if fault != "kept":
            optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])

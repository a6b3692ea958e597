"""Two models, and what a run of each keeps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hookcli.table import Report, Row


class Block(nn.Module):
    """What trips comparisons: in place operations, a residual, a module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.conv(x))) * 1
        y += x
        return self.drop(self.relu(y))


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(Block(), Block(), nn.Flatten(), nn.Linear(48, 5)).eval()


def x(seed: int = 1) -> Tensor:
    return torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


def error(a: Tensor, b: Tensor) -> float:
    return ((a.double() - b.double()).norm() / a.double().norm()).item()


def rows(report: Report) -> dict[tuple[str, int], Row]:
    return {(row.fqn, row["call"]): row for row in report.rows if row["kind"] == "output"}

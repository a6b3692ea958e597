"""A training with gradient accumulation, in one process or under torchrun, in which one sample is far out."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out


def main() -> None:
    rank, ranks = 0, int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    net = Regression()
    model: nn.Module = net
    if ranks > 1:
        dist.init_process_group("gloo")
        rank, model = dist.get_rank(), nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank)
    for step in range(40):
        optimizer.zero_grad()
        for part in range(4):
            x = torch.randn(32, 8, generator=data)
            y = x.sum(1, keepdim=True)
            if (step, part, rank) == (37, 2, ranks - 1):
                y[5] += 5000  # a label in the wrong unit
            ((model(x) - y).square().mean() / 4).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if ranks > 1 and (step, rank) == (20, 1):
            with torch.no_grad():
                net.head.bias += 1e-6  # on one rank alone
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

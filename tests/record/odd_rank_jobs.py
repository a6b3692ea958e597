"""Trainings on ranks in which one has other weights, or a batch that is far out."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from ranks import run_ranks
from record.rank_jobs import recorded
from torch import nn

from hookcli.record.file.ranks.ranked_record import RankedRecord, read_ranks

CHANGED = 4
"""The step after which rank 1 changes a weight."""
FAR = 12
"""The step whose last batch on rank 1 is far out in a row."""


def train(how: str, steps: int, parts: int = 1) -> None:
    """`how`: by DistributedDataParallel, unless gradients are averaged by "hand", or not at all (each its "own").

    "seed": with other weights on each rank. "changed": rank 1 changes a weight. "far", "nan": its batch is spoiled.
    "models": each rank has a model of its own. "buffers": with the statistics of each rank's batches.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank if "seed" in how else 0)
    net = nn.Sequential(nn.Linear(4, 6), *([nn.BatchNorm1d(6)] if "buffers" in how else []), nn.ReLU())
    net.append(nn.Linear(6, 2 + rank if "models" in how else 2))
    alone = any(word in how for word in ("hand", "own", "models"))
    model = net if alone else nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            x = torch.randn(8, 4, generator=generator)
            if step == FAR and rank == 1 and part == parts - 1:
                x[3] *= torch.nan if "nan" in how else 1e3 if "far" in how else 1
            (model(x).square().mean() / parts).backward()
        for p in net.parameters() if "hand" in how else ():
            dist.all_reduce(p.grad)
            p.grad /= size
        optimizer.step()
        if "changed" in how and step == CHANGED and rank == 1:
            with torch.no_grad():
                net[-1].bias[0] += 2**-20


def in_ranks(folder: str, how: str, steps: int = 8, parts: int = 1, **plan: object) -> None:
    rank = dist.get_rank()
    path = Path(folder) / f"rank{rank}.jsonl"
    recorded(path, rank, dist.get_world_size(), lambda: train(how, steps, parts), **plan)


def record_of(folder: Path, how: str, size: int = 2, **settings: object) -> RankedRecord:
    """The record of so many ranks that train in this way."""
    folder.mkdir(exist_ok=True)
    run_ranks(size, in_ranks, str(folder / "train.run"), how, **settings)
    return read_ranks(folder / "train.run")

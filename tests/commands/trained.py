"""Scripts that train: alone, and as two ranks, of which one starts the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TRAIN = """
    import sys
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
    print("loss", loss.item(), sys.argv[1:])
    """

PAIR = """
import os, sys
import forks, torch
os.environ.setdefault("MASTER_PORT", "1")
rank = int(os.environ.setdefault("RANK", "0"))
if rank == 0:
    other = forks.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": "1"})
torch.distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
if rank == 0:
    other.wait()
"""


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]

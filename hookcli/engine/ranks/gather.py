"""Gathers the ranks' reports on rank 0 after the run: one packed tensor per report, in one collective."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hookcli.engine.ranks.group import Group
from hookcli.table import Report
from hookcli.table.measured_rows import Places, pack, unpack


def gather(report: Report, group: Group) -> list[Report]:
    """On rank 0 the reports of all ranks, in order; on other ranks none."""
    packed = pack(report)
    size = group.largest(len(packed))
    device = torch.device("cuda", torch.cuda.current_device()) if group.backend == "nccl" else torch.device("cpu")
    own = torch.frombuffer(bytearray(packed.ljust(size, b"\0")), dtype=torch.uint8).to(device)
    if group.world.rank != 0:
        dist.gather(own, dst=0)
        return []
    everyone = [torch.empty_like(own) for _ in range(group.world.size)]
    dist.gather(own, everyone, dst=0)
    known: dict[bytes, Places] = {}
    return [unpack(part.cpu().numpy().data, known) for part in everyone]

"""Spreads a model over several processes: replicated by DistributedDataParallel or sharded by FSDP2 (`fully_shard`)."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hookcli.engine.ranks.blocks import blocks
from hookcli.hooks.torch_private.dynamo import preload

preload()  # the first DistributedDataParallel does it: not in the time of a run


def replicated(model: nn.Module) -> nn.Module:
    """The model in DistributedDataParallel. Unused parameters' buckets would else keep each process's gradients."""
    device = next(model.parameters()).device
    return DistributedDataParallel(
        model, device_ids=None if device.type == "cpu" else [device], find_unused_parameters=True
    )


def shard(model: nn.Module, device: torch.device, processes: int) -> None:
    """Shard parameters in place, a container's block at a time, so that no device needs to hold the whole model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # its import takes as long as torch itself

    mesh = init_device_mesh(device.type, (processes,))
    parts = list(blocks(model))
    shared = Counter(id(p) for block in parts for p in block.parameters())
    for block in parts:
        if all(shared[id(p)] == 1 for p in block.parameters()):  # shared ones belong to the model's own group
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)

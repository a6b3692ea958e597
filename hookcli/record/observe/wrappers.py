"""Names of models and their modules, without the wrappers that PyTorch puts around them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from hookcli.hooks.torch_private.dynamo import WRAPPED
from hookcli.table.names import operator_owner
from hookcli.tensors.tree import is_sharded, type_text

_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)


def unwrap(module: nn.Module) -> nn.Module:
    """The model that DataParallel, DistributedDataParallel or AveragedModel wraps."""
    while isinstance(module, _WRAPPERS):
        module = module.module
    return module


def replicas_of(module: nn.Module) -> int:
    """The number of processes over which a wrapper averages the gradients; 1 for none, or if it can't be told."""
    if isinstance(module, DistributedDataParallel):
        return int(module.process_group.size())
    sharded: list[Any] = [p for p in module.parameters() if is_sharded(p)]
    return math.prod(sharded[0].device_mesh.shape[: _fsdp_dimensions(module, sharded)]) if sharded else 1


def tensor_parallel_ranks(module: nn.Module) -> list[int]:
    """This and other ranks that share the model's layers, along the dimensions of meshes that are not FSDP2's."""
    ranks: list[int] = []
    sharded: list[Any] = [p for p in module.parameters() if is_sharded(p)]
    skipped = _fsdp_dimensions(module, sharded)
    for mesh in {id(p.device_mesh): p.device_mesh for p in sharded}.values():
        if (at := mesh.get_coordinate()) is not None:
            ranks = max(ranks, mesh.mesh[tuple(at[:skipped])].flatten().tolist(), key=len)
    return ranks if ranks[1:] else []


def _fsdp_dimensions(module: nn.Module, sharded: Sequence[Any]) -> int:
    """The number of a mesh's first dimensions that FSDP2 averages over: two for replicas of shards (HSDP), or one."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not any(isinstance(part, fsdp.FSDPModule) for part in module.modules()):
        return 0
    return 2 if all(parameter.placements[0].is_replicate() for parameter in sharded) else 1


def plain_type(module: nn.Module) -> str:
    """A model's class name, such as ResNet, also if it is compiled, sharded or averaged."""
    inner = unwrap(module)
    wrapped = next((part for name, part in inner.named_children() if name in WRAPPED), None)
    return type_text(inner) if wrapped is None else plain_type(wrapped)


class PlainNames:
    """Strips the names of wrappers from the fqns of a model's modules and parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._wrapped = {f"{fqn}.module".lstrip(".") for fqn, m in model.named_modules() if isinstance(m, _WRAPPERS)}

    def __call__(self, fqn: str) -> str:
        """layer1.conv for a conv in a compiled layer1, and layer1:add_1 for an operator there."""
        owner = operator_owner(fqn)
        if owner is not None:
            return self(owner) + fqn[len(owner) :]
        parts = fqn.split(".")
        places = zip(parts, accumulate(parts, "{}.{}".format), strict=True)
        return ".".join(part for part, place in places if part not in WRAPPED and place not in self._wrapped)

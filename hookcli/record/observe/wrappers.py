"""Names of models and their modules, without the wrappers that PyTorch puts around them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from hookcli.hooks.torch_private.dynamo import WRAPPED
from hookcli.tensors.tree import is_sharded, type_text

_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)


def unwrap(module: nn.Module) -> nn.Module:
    """The model that DataParallel, DistributedDataParallel or AveragedModel wraps."""
    while isinstance(module, _WRAPPERS):
        module = module.module
    return module


def replicas_of(module: nn.Module) -> int:
    """The number of processes over which a wrapper averages the gradients; 1 for none, or if it can't be told.

    FSDP2 averages over all processes of its mesh. A second dimension of the mesh holds the shards of replicas (HSDP) if
    no parameter is sharded along the first one; else it is another's, such as tensor parallel's.
    """
    if isinstance(module, DistributedDataParallel):
        return int(module.process_group.size())
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(module, fsdp.FSDPModule):
        held: list[Any] = [parameter for parameter in module.parameters() if is_sharded(parameter)]
        if held:
            replicated = all(parameter.placements[0].is_replicate() for parameter in held)
            mesh = held[0].device_mesh
            return int(mesh.size() if mesh.ndim == 1 or replicated else mesh.size(0))
    return 1


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
        """layer1.conv for a conv in a compiled layer1."""
        return ".".join(self._kept(fqn))

    def _kept(self, fqn: str) -> Iterator[str]:
        parts = fqn.split(".")
        for number, part in enumerate(parts, 1):
            if part not in WRAPPED and ".".join(parts[:number]) not in self._wrapped:
                yield part

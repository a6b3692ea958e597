"""Names of models and their modules, without the wrappers that PyTorch puts around them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from hookcli.hooks.torch_private.dynamo import WRAPPED
from hookcli.tensors.tree import type_text

_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)


def unwrap(module: nn.Module) -> nn.Module:
    """The model that DataParallel, DistributedDataParallel or AveragedModel wraps."""
    while isinstance(module, _WRAPPERS):
        module = module.module
    return module


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

"""What models and their parts are called: without the wrappers that PyTorch puts around them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from hookcli.tensors.tree import type_text

# Their names are PyTorch's own: torch.compile, FullyShardedDataParallel, checkpoint_wrapper.
_ATTRIBUTES = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)


def unwrapped(module: nn.Module) -> nn.Module:
    """The model that a wrapper calls as it is."""
    while isinstance(module, _WRAPPERS):
        module = module.module
    return module


def plain_type(module: nn.Module) -> str:
    """ResNet, also where it is compiled, sharded or averaged."""
    inner = unwrapped(module)
    wrapped = next((part for name, part in inner.named_children() if name in _ATTRIBUTES), None)
    return type_text(inner) if wrapped is None else plain_type(wrapped)


class Names:
    """The fqns of a model's modules and parameters, stripped of `module.`, `_orig_mod.` and FSDP's wrappers."""

    def __init__(self, model: nn.Module) -> None:
        self._wrapped = {f"{fqn}.module".lstrip(".") for fqn, m in model.named_modules() if isinstance(m, _WRAPPERS)}

    def __call__(self, fqn: str) -> str:
        """layer1.conv for layer1._orig_mod.conv."""
        return ".".join(self._kept(fqn))

    def _kept(self, fqn: str) -> Iterator[str]:
        parts = fqn.split(".")
        for number, part in enumerate(parts, 1):
            if part not in _ATTRIBUTES and ".".join(parts[:number]) not in self._wrapped:
                yield part

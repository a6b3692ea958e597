"""The parameters and buffers of a model, as tensors that are read block by block."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.parameter import is_lazy

from hookcli.errors import ModelError
from hookcli.tensors.files.pytorch import stored
from hookcli.tensors.files.stored import StoredTensor
from hookcli.tensors.tree import type_text


def parameters_and_buffers(model: nn.Module) -> Iterator[StoredTensor]:
    """All of them, by module; a tensor of several names is tied to its first. Raises ModelError for lazy ones."""
    first: dict[int, str] = {}
    for owner, module in model.named_modules():
        for kind, named in (("parameter", module.named_parameters), ("buffer", module.named_buffers)):
            for name, tensor in named(recurse=False, remove_duplicate=False):
                fqn = f"{owner}.{name}" if owner else name
                if is_lazy(tensor):
                    raise ModelError(f"{fqn} is lazy: it has no values before its module has run once")
                tied = first.setdefault(id(tensor), fqn)
                yield stored(fqn, tensor, kind=kind, type=type_text(module), tied=tied if tied != fqn else "")

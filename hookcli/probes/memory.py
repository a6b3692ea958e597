"""How much memory autograd keeps for backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy


class Memory:
    """What memory is kept for backward, each storage once."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        self._held = {_storage(tensor) for tensor in held if not is_lazy(tensor)} - {None}
        self._lazy = [tensor for tensor in held if is_lazy(tensor)]
        self._kept: dict[int, StorageWeakRef] = {}

    def keep(self, tensor: Tensor) -> int:
        """How many bytes keeping this tensor adds: those of its whole storage, or none."""
        key = _storage(tensor)
        if key is None:
            return tensor.numel() * tensor.element_size()
        known = self._kept.get(key)
        self._held |= {_storage(tensor) for tensor in self._lazy if not is_lazy(tensor)}
        if key in self._held or (known is not None and not known.expired()):
            return 0
        storage = tensor.untyped_storage()
        self._kept[key] = StorageWeakRef(storage)
        return storage.nbytes()


def _storage(tensor: Tensor) -> int | None:
    """Which memory a tensor lies in; None where it is not one stretch (sparse, nested)."""
    plain = tensor.layout is torch.strided and not tensor.is_nested and type(tensor) in (Tensor, nn.Parameter)
    return tensor.untyped_storage()._cdata if plain else None

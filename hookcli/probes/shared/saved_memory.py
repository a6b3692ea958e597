"""The memory that autograd saves for backward."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import CheckpointFunction

from hookcli.hooks.module_calls import Call
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.overrides import storage_key
from hookcli.table.formatting import listed


class SavedMemory:
    """The memory saved for backward, each storage once."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        self._held = {_storage(tensor) for tensor in held if not is_lazy(tensor)} - {None}
        self._lazy = [tensor for tensor in held if is_lazy(tensor)]
        self._kept: dict[int, StorageWeakRef] = {}

    def keep(self, tensor: Tensor) -> int:
        """The bytes that saving this tensor adds: those of its whole storage, or none."""
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


def on_other_devices(session: HookSession) -> list[str]:
    """Notes on memory kept on the meta device, where other devices may keep more or less."""
    layers = [
        hooked.fqn or "(model)"
        for hooked in session.modules.hooked.values()
        if hooked.calls and isinstance(hooked.module, nn.RNNBase) and any(p.is_meta for p in hooked.module.parameters())
    ]
    said = [f"memory kept by {listed(layers, 2)} is that of PyTorch's formula; {_WORKSPACES}"] if layers else []
    return [*session.saved_tensors.notes(), *said]


_WORKSPACES = "libraries of CPUs and GPUs keep workspaces of other sizes (`hookcli trace --summary` measures them)"


def recomputed(running: Sequence[Call]) -> bool:
    """True while a region is run again in the course of backward, as in reentrant checkpointing, by these running
    calls.

    What such a region saves is freed again as the pass goes on. A model that differentiates in its forward is in a
    pass, too, but in one that began within a call of the model; and what `create_graph` adds to a graph belongs to no
    module.
    """
    if not in_backward():
        return False
    return (bool(running) and bool(running[0].hooked.fqn)) or _in_checkpoint(sys._getframe())


def _in_checkpoint(frame: FrameType | None) -> bool:
    """True if the frame, or one that called it, reruns a region of `torch.utils.checkpoint`."""
    while frame is not None:
        if frame.f_code is CheckpointFunction.backward.__code__:
            return True
        frame = frame.f_back
    return False


def _storage(tensor: Tensor) -> int | None:
    """The memory that a tensor lies in; None if it is not one stretch (sparse, nested)."""
    plain = tensor.layout is torch.strided and not tensor.is_nested and type(tensor) in (Tensor, nn.Parameter)
    return storage_key(tensor.untyped_storage()) if plain else None

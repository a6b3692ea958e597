"""Origins of tensors: the number of the call that made a tensor, or that last wrote into its memory.

Tensors are known by their identity and a weak reference without a callback, so none is kept alive. A tensor that is
not known itself, such as another Python object for the same tensor, has the origin of its memory. Memory is known by
a weak reference as well, which keeps a few bytes and the number, but not the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ref

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from hookcli.hooks.torch_private.overrides import storage_key
from hookcli.tensors.torch_private import version

CONSTANT = -1
"""The origin of parameters, buffers, and everything else that no call made."""


class TensorOrigins:
    """Calls are numbered from 0, in their order. `constants`: the model's parameters and buffers."""

    def __init__(self, constants: Iterable[Tensor]) -> None:
        self._made = {id(x): (ref(x), CONSTANT) for x in constants}
        self._memory: dict[int, tuple[StorageWeakRef, int]] = {}
        self._written: dict[int, int] = {}

    def of(self, x: Tensor) -> int | None:
        """The call that made the tensor or last wrote into its memory; None if none is known."""
        memory = memory_of(x)
        reference, made = self._made.get(id(x), (None, CONSTANT))
        if reference is None or reference() is not x:
            return self._memory[memory][1] if memory in self._memory else None
        return max(made, self._written.get(memory, CONSTANT))

    def made(self, x: Tensor, call: int) -> None:
        self._made[id(x)] = ref(x), call
        self._remember(x, call)

    def written(self, x: Tensor, call: int) -> None:
        """Note that this call wrote into the tensor's memory, which its views share."""
        self._written[self._remember(x, call)] = call

    def _remember(self, x: Tensor, call: int) -> int:
        memory = memory_of(x)
        if memory:
            reference = self._memory[memory][0] if memory in self._memory else StorageWeakRef(x.untyped_storage())
            self._memory[memory] = reference, call
        return memory


def memory_of(x: Tensor) -> int:
    """The number of a tensor's memory, which no other memory gets while it is known; 0 for a tensor without."""
    try:
        return storage_key(x.untyped_storage())
    except (NotImplementedError, RuntimeError):  # sparse tensors, and those inside torch.func
        return 0


def version_of(x: Tensor) -> int:
    """The number of changes of the tensor's memory; -1 for inference tensors, which don't count them."""
    return -1 if x.is_inference() else version(x)

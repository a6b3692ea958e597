"""Origins of tensors: the number of the call that made a tensor, or that last wrote into its memory.

Tensors are known by their identity and a weak reference without a callback, so none is kept alive. A tensor that is
not known itself, such as another Python object for the same tensor, has the origin of its memory. Memory is known by
a weak reference as well, which keeps a few bytes and the number, but not the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef

from hookcli.hooks.events import HookEvent
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


Edge = tuple[Node, int] | int
"""A place in the autograd graph: a node and the number of its output; for a leaf, the id of the tensor."""


class TensorVersion:
    """The version of a tensor, without keeping its memory alive: `changed` reports later in-place changes.

    PyTorch has no public access to a version counter, so this keeps an empty tensor that shares it. An in-place change
    to a view, or to another view of its memory, gives the view another node, which drops the hooks on the view.
    """

    __slots__ = ("_counter", "_then")

    def __init__(self, tensor: Tensor) -> None:
        with torch.no_grad(), torch.DisableTorchFunctionSubclass():
            self._counter = tensor.detach()
            if not tensor.is_nested:
                self._counter.data = self._counter.new_empty(0)
            elif hasattr(tensor, "__tensor_flatten__"):  # a jagged one has no empty form: its values are emptied
                for name in tensor.__tensor_flatten__()[0]:
                    if (part := getattr(self._counter, name)) is not getattr(tensor, name):
                        part.data = part.new_empty(0)
        self._then = version(tensor)

    def changed(self) -> bool:
        """Return whether the tensor, or memory that it shares, was changed in place since."""
        return version(self._counter) != self._then


@dataclass(slots=True)
class ReceivedTensor:
    """A tensor that a call received, and the sum of the gradients from the nodes that the call created from it.

    `edge`: the place in the graph that these nodes lead to.
    `events`: the event to emit for each place among the call's arguments.
    `version`: the tensor's version when the call began; -1 for an inference tensor.
    `places`: in how many places among the call's arguments it was when the call began.
    `made`: how many nodes the call created from it. `arrived`: how many of their gradients are in `total`.
    `handed_on`: the call returned the tensor itself, unchanged, or left it where others find it.
    `lost`: an in-place change took the gradient past the tensor.
    `views`: versions of the tensor, if the call returned a view of it.
    """

    edge: Edge
    events: list[HookEvent]
    shape: torch.Size | None
    version: int
    places: int
    made: int = 0
    arrived: int = 0
    total: Tensor | None = None
    handed_on: bool = False
    lost: bool = False
    views: list[TensorVersion] = field(default_factory=list)

    def add(self, grad: Tensor) -> None:
        """Add a node's gradient, in the tensor's own shape: PyTorch reduces broadcast ones only after hooks."""
        if self.shape is not None and grad.shape != self.shape:
            grad = grad.sum_to_size(self.shape)
        self.total = grad if self.total is None else self.total + grad

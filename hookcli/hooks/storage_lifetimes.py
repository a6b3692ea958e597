"""The lifetime of every storage that operators create: a dispatch mode that keeps a log of creations and releases.

A release is noted by a weak reference whose callback is written in C: `list.append` of the log itself. Python drops
exceptions that are raised in such a callback, also the KeyboardInterrupt of a Ctrl-C that comes while it runs, so that
none of them may run Python code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn

from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.overrides import TorchDispatchMode, reference_counts, storage_key
from hookcli.tensors.tree import Args, Kwargs, is_dense

_CUDA_BLOCK = 512  # c10/cuda/CUDACachingAllocator.h, kMinBlockSize


def cuda_block(x: Tensor) -> int:
    """The bytes of the block that CUDA's caching allocator hands out for the storage of a tensor."""
    return -(-x.untyped_storage().nbytes() // _CUDA_BLOCK) * _CUDA_BLOCK


class Kernels(Protocol):
    """The kernels of a device, which operators on the meta device lack."""

    def call(self, func: object, args: Args, kwargs: Kwargs) -> object:
        """Call the operator."""

    def workspace(self, func: object, args: Args, out: object) -> int:
        """The bytes that a call has at most in use, results included; 0 if that is no more than its results."""

    def allocated(self, x: Tensor) -> int:
        """The bytes that the device's allocator hands out for the storage of a tensor."""


@dataclass(slots=True, eq=False)
class Storage:
    """A storage that was in use: its bytes, as the device allocates them, where it was created, and what it is for."""

    nbytes: int
    place: Any
    operator: str
    kind: str = ""


@dataclass(slots=True, eq=False)
class OperatorCall:
    """A call of an operator that created storages, or that had a workspace: `inside` is the most that it added."""

    operator: str
    place: Any
    created: list[Storage]
    inside: int


@dataclass(slots=True, eq=False)
class PhaseBegins:
    """A moment in the log: a phase of the simulated step begins."""

    phase: str


class StorageLifetimes(TorchDispatchMode):
    """Notes every storage that an operator creates, and the moment at which it is released.

    `place(arguments)` returns the place in which an operator runs. Pass storages that exist already to `hold`.
    Views and in-place operators create no storage.
    """

    def __init__(self, place: Callable[[object], object], kernels: Kernels) -> None:
        TorchDispatchMode.__init__(self)
        self.log: list[object] = []
        self.older: list[Storage] = []
        """Storages older than the mode that `hold` was not told of; an operator returned a view of each."""
        self._place = place
        self._kernels = kernels
        self._owned = _counts_of_owned()
        self._known: dict[int, tuple[ref[torch.UntypedStorage], Storage]] = {}
        self._noted: dict[int, Storage] = {}
        # By the id of the weak reference, which lives in `_known` until it comes into the log: storages can't be keys.

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if any(hasattr(kind, _WRAPS) for kind in types):
            return NotImplemented  # the class computes with the tensors that it wraps, which come here in turn
        place = self._place(args)
        # A sum of gradients is added in place where autograd would do so without this mode.
        sums = func is _ADD and not kwargs and in_backward() and not torch.is_grad_enabled()
        in_place = sums and reference_counts(args[0]) == self._owned and args[0].shape == args[1].shape
        out = _ADD_(*args) if in_place else self._kernels.call(func, args, kwargs)
        created = [storage for x in _tensors(out) if (storage := self._created(x, func, args, place))]
        inside = self._kernels.workspace(func, args, out)
        if created or inside:
            size = sum(storage.nbytes for storage in created)
            self.log.append(OperatorCall(str(func.overloadpacket), place, created, max(size, inside)))
        return out

    def hold(self, tensors: Iterable[Tensor], kind: str, place: object) -> None:
        """Note storages that exist already, or that are known by now to be of this kind."""
        for tensor in chain.from_iterable(map(carried, tensors)):
            storage = self.find(tensor)
            if storage is None:
                storage = self._note(tensor, place, "")
                self.log.append(OperatorCall("", place, [storage], storage.nbytes))
            storage.kind, storage.place = kind, place

    def find(self, tensor: Tensor) -> Storage | None:
        """The storage of a tensor, if it was noted."""
        if not is_dense(tensor):
            return None
        entry = self._known.get(storage_key(tensor.untyped_storage()))
        return entry[1] if entry is not None and entry[0]() is not None else None

    def mark(self, phase: str) -> None:
        self.log.append(PhaseBegins(phase))

    def released(self, entry: object) -> Storage | None:
        """The storage that this entry of the log released; None for an entry of another kind."""
        return self._noted.get(id(entry)) if isinstance(entry, ref) else None

    def alive(self) -> Iterator[Storage]:
        return (storage for reference, storage in self._known.values() if reference() is not None)

    def _created(self, x: Tensor, func: Any, args: Args, place: object) -> Storage | None:
        """The storage of a result, if this operator created it."""
        if not is_dense(x) or self.find(x) is not None:
            return None
        storage = x.untyped_storage()
        key = storage_key(storage)
        viewed = (is_dense(y) and storage_key(y.untyped_storage()) == key for y in _tensors(args))
        if func not in _FROM_DATA and any(viewed):
            self.older.append(self._note(x, place, ""))
            return None
        return self._note(x, place, str(func.overloadpacket)) if storage.nbytes() else None

    def _note(self, tensor: Tensor, place: object, operator: str) -> Storage:
        storage = tensor.untyped_storage()
        noted = Storage(self._kernels.allocated(tensor), place, operator)
        reference = ref(storage, self.log.append)
        self._known[storage_key(storage)] = reference, noted
        self._noted[id(reference)] = noted
        return noted


_WRAPS = "__tensor_flatten__"


def carried(tensor: object, depth: int = 3) -> Iterator[Tensor]:
    """The dense tensors that take the memory of a tensor: itself, or those that its class wraps, as torchao's do.

    Also those in its attributes, at most so deep, where bitsandbytes has the scales of its 4-bit weights.
    """
    if isinstance(tensor, Tensor):
        if flatten := getattr(tensor, _WRAPS, None):
            yield from chain.from_iterable(carried(getattr(tensor, name)) for name in flatten()[0])
            return
        if is_dense(tensor):
            yield tensor
    if depth and not isinstance(tensor, (type, nn.Module)):
        for value in getattr(tensor, "__dict__", {}).values():
            yield from carried(value, depth - 1)


_ADD, _ADD_ = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
_FROM_DATA = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)
"""The operators to which `torch.tensor` hands what it has just made."""


class _CountingUses(TorchDispatchMode):
    """Notes the reference counts of the first summand of each sum."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.counts: list[tuple[int, int]] = []

    def __torch_dispatch__(self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None) -> object:
        if func is _ADD:
            self.counts.append(reference_counts(args[0]))
        return func(*args, **(kwargs or {}))


@cache
def _counts_of_owned() -> tuple[int, int] | None:
    """The reference counts, inside a dispatch mode, of a gradient that only autograd refers to.

    Without a mode, autograd adds further gradients to such a one in place; in a mode, it makes a new tensor. None if
    this PyTorch has no such counts, or if they are the same for a gradient that has another reference.
    """
    x = torch.empty(2, device="meta", requires_grad=True)
    with torch.enable_grad(), _CountingUses() as owned:
        (x.sin() + x.cos()).sum().backward()
    with torch.enable_grad(), _CountingUses() as shared:
        (x.sin() + x.view(2, 1).view(2)).sum().backward()
    return owned.counts[-1] if owned.counts[-1:] != shared.counts[-1:] else None


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors that an operator returned."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)

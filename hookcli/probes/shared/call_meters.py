"""Calls of modules and operators: shapes, the bytes that they move, and the memory that autograd saves for backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy

from hookcli.hooks.events import HookEvent
from hookcli.hooks.module_calls import Call
from hookcli.hooks.observing_mode import Signature
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import memory_of, version_of
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.overrides import storage_key
from hookcli.probes.shared.module_facts import in_checkpoint
from hookcli.registry.capability import hint
from hookcli.table.formatting import listed
from hookcli.tensors import tree
from hookcli.tensors.tree import dtype_text, keyword, shape_of

_PICK = frozenset({"embedding", "gather", "getitem", "index_select", "take", "take_along_dim"})
_OVERWRITE = frozenset({"copy_", "exponential_", "fill_", "normal_", "random_", "uniform_", "zero_"})


@dataclass(slots=True)
class Traffic:
    """Bytes that were read, and bytes that were written."""

    read: int = 0
    written: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.read + other.read, self.written + other.written)

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.read - other.read, self.written - other.written)


def of_operator(event: HookEvent) -> Traffic:
    """The bytes that an operator moved; its event comes after it ran."""
    assert event.operator is not None
    name, received = event.operator.name, tree.received(event.args, event.kwargs)
    if event.operator.full_name.endswith(".__setitem__"):
        return _of_assignment(*event.args)
    target = {id(x) for _, x in tree.leaves(event.kwargs.get("out"))}
    if name in _OVERWRITE:
        target |= {id(x) for x in received[:1]}
    read = [] if name.endswith("_like") or name.startswith("new_") else [x for x in received if id(x) not in target]
    made = tree.tensors(event.output)
    received_ids = {id(x) for x in received}
    if any(id(x) not in received_ids and _shares_memory(x, received) for x in made):
        return Traffic()
    return _moved(read, made, picks=name in _PICK)


def of_layer(event: HookEvent, versions: Sequence[int]) -> Traffic:
    """The bytes that a layer of torch.nn without parts moved, its parameters among them.

    `versions`: those that the tensors had which it received. A layer that hands on a tensor moves nothing.
    """
    assert event.module is not None
    received = tree.received(event.args, event.kwargs)
    kept = {id(x) for x, before in zip(received, versions, strict=False) if version_of(x) == before}
    made = tree.tensors(event.output)
    if all(id(x) in kept or (_shares_memory(x, received) and id(x) not in map(id, received)) for x in made):
        return Traffic()
    held = [*event.module.parameters(recurse=False), *event.module.buffers(recurse=False)]
    return _moved([*received, *held], made, picks=isinstance(event.module, nn.Embedding))


def _of_assignment(target: Tensor, index: Any, value: object) -> Traffic:
    """The bytes of `target[index] = value`, counted over the part that is assigned."""
    read = [x for x in (value,) if isinstance(x, Tensor)]
    if any(isinstance(x, Tensor) for _, x in tree.leaves(index)):
        return _moved(read, read or [target])
    with torch.no_grad(), torch.DisableTorchFunction():
        return _moved(read, [target[index]])


def _moved(read: Iterable[Tensor], written: Iterable[Tensor], *, picks: bool = False) -> Traffic:
    out = _size(written)
    if not picks:
        return Traffic(_size(read), out)
    return Traffic(out + _size(x for x in read if not x.is_floating_point() and not x.is_complex()), out)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(map(_bytes, {id(x): x for x in tensors}.values()))


def _bytes(x: Tensor) -> int:
    """The bytes of a tensor in memory; elements that `expand` repeats count once."""
    if x.is_nested:  # its sizes may be symbols
        with torch.no_grad():
            x = x.values()
    try:
        numel = prod(size for size, stride in zip(x.shape, x.stride(), strict=True) if stride)
    except (RuntimeError, NotImplementedError):  # sparse tensors have no strides
        numel = x.numel()
    return int(numel * x.element_size())


def _shares_memory(x: Tensor, others: Iterable[Tensor]) -> bool:
    memory = memory_of(x)
    return memory != 0 and any(memory_of(other) == memory for other in others)


Tensors = Iterable[tuple[str, Tensor]]


class Reading(NamedTuple):
    """Meters at a moment: the calls of functions that were recorded, the bytes kept for backward, and those moved."""

    calls: int = 0
    kept: int = 0
    moved: Traffic = Traffic()


@dataclass(slots=True)
class ShapeCall:
    """A call of a module, or of an operator (`module` is None): what went in, what came out, and the meters.

    `after` is None for a call that has not ended. `versions`: the version counters of the tensors that a layer
    received, if asked. `signature`: of an ATen operator, which runs inside of the functions that meters count.
    """

    fqn: str
    type: str
    module: nn.Module | None
    call: int
    index: int
    inputs: list[list[int]]
    names: list[str]
    before: Reading
    further: dict[str, str]
    outputs: list[tuple[str, list[int], str]] = field(default_factory=list)
    after: Reading | None = None
    versions: Sequence[int] | None = None
    signature: Signature | None = None

    @classmethod
    def of(cls, event: HookEvent, received: Tensors, before: Reading, further: Mapping[str, str]) -> Self:
        """The call that an event is about; `further`: other values of its row, such as an operator's name."""
        tensors = list(received)
        inputs, names = [shape_of(x) for _, x in tensors], [keyword(path) for path, _ in tensors]
        kind = type(event.module).__name__
        return cls(event.fqn, kind, event.module, event.call, event.index, inputs, names, before, {**further})

    def leave(self, returned: Tensors, after: Reading) -> None:
        """Note what the call returned."""
        self.outputs = [(path, shape_of(x), dtype_text(x)) for path, x in returned]
        self.after = after

    @property
    def kept(self) -> int | None:
        """The bytes that the call saved for backward; not known of an ATen operator."""
        return None if self.after is None or self.signature else self.after.kept - self.before.kept

    @property
    def moved(self) -> Mapping[str, int | None]:
        """The bytes that the call read and wrote."""
        if self.after is None:
            return {"read_bytes": None, "written_bytes": None}
        moved = self.after.moved - self.before.moved
        return {"read_bytes": moved.read, "written_bytes": moved.written}


class SavedMemory:
    """The memory saved for backward, each storage once."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        self._held = {_storage(tensor) for tensor in held if not is_lazy(tensor)} - {None}
        self._lazy = [tensor for tensor in held if is_lazy(tensor)]
        self._kept: dict[int, StorageWeakRef] = {}

    def keep(self, tensor: Tensor) -> int:
        """The bytes that saving this tensor adds: its whole storage, or none."""
        key = _storage(tensor)
        if key is None:
            return tensor.numel() * tensor.element_size()
        earlier = self._kept.get(key)
        self._held |= {_storage(tensor) for tensor in self._lazy if not is_lazy(tensor)}
        if key in self._held or (earlier is not None and not earlier.expired()):
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
    notes = [f"memory kept by {listed(layers, 2)} is computed by PyTorch's formula; {_WORKSPACES}"] if layers else []
    return [*session.saved_tensors.notes(), *notes]


_MORE = hint("workspaces")
_WORKSPACES = "libraries of CPUs and GPUs keep workspaces of other sizes" + f" ({_MORE})" * bool(_MORE)


def recomputed(running: Sequence[Call]) -> bool:
    """True while a region is run again in the course of backward, as in reentrant checkpointing, by these running
    calls.

    Tensors saved in such a region are freed again as the pass goes on. A model that differentiates in its forward is in
    a pass, too, but that pass began within a call of the model. Nodes that `create_graph` adds belong to no module.
    """
    if not in_backward():
        return False
    return (bool(running) and bool(running[0].hooked.fqn)) or in_checkpoint(again=True)


def _storage(tensor: Tensor) -> int | None:
    """The memory that a tensor lies in; None if it is not one stretch (sparse, nested)."""
    plain = tensor.layout is torch.strided and not tensor.is_nested and type(tensor) in (Tensor, nn.Parameter)
    return storage_key(tensor.untyped_storage()) if plain else None

"""The tensors inside nested values: lists, tuples, named tuples, mappings, dataclasses, and types that are registered
with pytree.

pytree knows neither plain dataclasses nor paths in PyTorch's spelling, and rebuilds containers even
where nothing changed; hooks must hand back the very object they were given unless a tensor in it was replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, cast

import torch
from torch import Tensor, nn

from hookcli.tensors.containers import Walked, get_item, is_registered, items_of, keys_of, rebuilt, set_item
from hookcli.tensors.torch_private import base_of_view, is_mapped, is_view, spec_of_local

DEEPEST = 100  # levels that are walked: Python's stack allows as many
_SHALLOW = 12  # levels above which one container may be found by several ways; below, the first way counts
_PLAIN = frozenset((NoneType, bool, int, float, str))  # most of what is passed beside tensors, and holds none

Args = tuple[object, ...]  # the arguments of a call: positional, and by keyword
Kwargs = dict[str, object]
Unseen = list[tuple[str, object]]  # what a walk met and could not look into, with its path


def leaves(value: object, path: str = "", unseen: Unseen | None = None) -> Iterator[tuple[str, Tensor]]:
    """Each tensor with its path, such as `["out"]`, `[0].hidden`, or "" where the value is itself a tensor.

    Adds to `unseen` what can't be looked into, tensors or not.
    """
    if isinstance(value, Tensor):
        return iter(((path, value),))
    return iter(()) if type(value) in _PLAIN else _inside(value, path, unseen)


def _inside(
    value: object, path: str, unseen: Unseen | None, depth: int = 0, around: set[int] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The tensors inside a value that is none. `around`: the containers that it is in, and deep ones seen before."""
    children = items_of(value) if depth < DEEPEST else None
    if type(value) is Walked and unseen is not None:
        unseen.extend(value.unseen)
    if children is None:
        if unseen is not None:
            unseen.append((path, value))
        return
    for step, item in children:
        if isinstance(item, Tensor):
            yield path + step, item
        elif type(item) not in _PLAIN:
            if around is None:
                around = {id(value)}
            identity = id(item)
            if identity not in around:
                around.add(identity)
                yield from _inside(item, path + step, unseen, depth + 1, around)
                if depth < _SHALLOW:
                    around.discard(identity)


def arguments(args: Args, kwargs: Mapping[str, object], unseen: Unseen | None = None) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a call received; a lone positional argument has the path "", as a lone output has."""
    if len(args) == 1 and not kwargs:
        yield from leaves(args[0], "", unseen)
    else:
        yield from leaves(args, "", unseen)
        yield from leaves(kwargs, "", unseen)


def tensors(value: object) -> list[Tensor]:
    """The tensors of `leaves`."""
    return [x for _, x in leaves(value)]


def received(args: Args, kwargs: Mapping[str, object], unseen: Unseen | None = None) -> list[Tensor]:
    """The tensors of `arguments`."""
    return [x for _, x in arguments(args, kwargs, unseen)]


Change = Callable[[str, Tensor], Tensor]


def once(change: Change) -> Change:
    """`change`, called once per tensor, so that one tensor in several places stays one."""
    made: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor, whose id nothing else may get meanwhile

    def changed(path: str, tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor, change(path, tensor)
        return made[id(tensor)][1]

    return changed


def base(tensor: Tensor) -> Tensor:
    """The tensor that this one is a view of; the tensor itself if it is not a view."""
    viewed = base_of_view(tensor) if is_view(tensor) else None
    return tensor if viewed is None else viewed


def shape_of(tensor: Tensor) -> list[int]:
    """The tensor's shape; -1 for the sizes of a nested tensor that differ between its parts."""
    if not tensor.is_nested:
        return list(tensor.shape)
    sizes = []
    for dim in range(tensor.dim()):
        try:
            size = tensor.size(dim)
        except RuntimeError:  # a strided one refuses to tell those that differ; of a jagged one they are symbols
            size = -1
        sizes.append(size if type(size) is int else -1)
    return sizes


def shape_text(tensor: Tensor) -> str:
    """10x3x224x224; `*` for a size that varies."""
    return "x".join("*" if size < 0 else str(size) for size in shape_of(tensor)) or "scalar"


def dtype_text(tensor: Tensor) -> str:
    """float32."""
    return str(tensor.dtype).removeprefix("torch.")


def type_text(module: nn.Module) -> str:
    """The name of a module's class, such as Conv2d; for a module under `fully_shard`, of its original class."""
    bases = type(module).__bases__
    return bases[-1].__name__ if bases[0].__name__ == "FSDPModule" else type(module).__name__


def keyword(path: str) -> str:
    """The name of the keyword argument at a path of `arguments`, with its items; "" for a positional argument."""
    name, _, rest = path.removeprefix('["').partition('"]')
    return name + rest if path.startswith('["') else ""


def is_dense(tensor: Tensor) -> bool:
    """True for a tensor with a stride in each dimension, that has views: neither nested nor sparse."""
    return tensor.layout is torch.strided and not tensor.is_nested


def is_plain(tensor: Tensor) -> bool:
    """True for a tensor in strided memory, as most operators need it: not nested, quantized, mapped by vmap, on the
    meta device or of a class that computes in its own way (MaskedTensor, DTensor).
    """
    special = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ or is_mapped(tensor)
    return is_dense(tensor) and not (special or tensor.is_quantized or tensor.is_meta)


def is_sharded(tensor: Tensor) -> bool:
    """True for a DTensor, of which this process holds only a part."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def gradient(tensor: Tensor) -> Tensor | None:
    """The `.grad` of a tensor that has one: PyTorch warns where it is read of any other, such as a fast weight."""
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def gradients(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The `.grad` of those tensors that have one."""
    return [grad for grad in map(gradient, tensors) if grad is not None]


def local(tensor: Tensor) -> Tensor:
    """The detached values that this process holds: of a DTensor its part, without a collective; else all of them."""
    held: Any = Tensor.detach(tensor)
    return cast(Tensor, held.to_local() if is_sharded(tensor) else held)


def shard_of(tensor: Tensor) -> dict[str, object]:
    """`{"sharded": [1]}` for a DTensor of which each process holds a part; its part's place, by dimension of the mesh.

    Empty for a tensor that this process holds whole, also among replicas. With `partial`, processes hold summands.
    """
    if not is_sharded(tensor):
        return {}
    held: Any = tensor
    return _shard(list(zip(held.device_mesh.get_coordinate() or [], held.placements, strict=False)))


def _shard(places: Sequence[tuple[int, Any]]) -> dict[str, object]:
    """A process's place among the shards, by its place and the placement in each dimension of the mesh."""
    shard = [place for place, placement in places if not placement.is_replicate()]
    partial = any(placement.is_partial() for _, placement in places)
    return ({"sharded": shard} if shard else {}) | ({"partial": True} if partial else {})


def layout_of(tensor: Tensor) -> dict[str, object]:
    """The layout over ranks of a DTensor, or of the one whose `to_local()` returned this tensor; else empty.

    `shape`: the shape of the whole tensor on its mesh, `mesh` the ranks there. `sharded` is this rank's place among
    the shards, by dimension of the mesh; it is absent if each rank has the whole. `partial`: ranks hold summands.
    """
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None:
        return {}
    placed: Any = tensor if isinstance(tensor, distributed.DTensor) else spec_of_local(tensor)
    mesh = getattr(placed, "device_mesh", None)  # of a DTensor or its spec
    if mesh is None or mesh.get_coordinate() is None:
        return {}
    with torch.DisableTorchFunction():  # the program's modes need not see how the ranks of a mesh are read
        ranks = mesh.mesh.flatten().tolist()
    places = list(zip(mesh.get_coordinate(), placed.placements, strict=True))
    return {"shape": list(placed.shape), "mesh": ranks} | _shard(places)


def lone(shapes: Sequence[object]) -> object:
    """The value of a shape column: a single shape itself, several as a list, None for none."""
    return shapes[0] if len(shapes) == 1 else shapes or None


class Undo(list[tuple[object, object, object, object]]):
    """A record of replaced items: (container, key, was, is). Calling it puts the old items back."""

    def __call__(self) -> None:
        for container, key, was, now in reversed(self):
            if get_item(container, key) is now:
                set_item(container, key, was)


def replace_arguments(args: Args, kwargs: Kwargs, change: Change, undo: Undo) -> tuple[Args, Kwargs]:
    """`replace` for the arguments of a call, with the paths that `arguments` gives.

    Lists, mappings and dataclasses stay the same objects, since the caller may look for the callee's changes in them:
    their items are replaced until `undo` is called. Objects of types registered with pytree stay unchanged, as do their
    tensors: a copy would miss what the callee writes.
    """
    if len(args) == 1 and not kwargs:
        return (replace(args[0], change, undo=undo),), kwargs
    replaced = {key: _replaced(item, change, f'["{key}"]', undo, [id(kwargs)]) for key, item in kwargs.items()}
    return replace(args, change, undo=undo), replaced


def replace(value: object, change: Change, undo: Undo | None = None) -> Any:
    """The value with `change(path, tensor)` in place of each tensor; the same object if no tensor changed.

    Containers are rebuilt; with `undo`, those that can be are changed instead, and the old items recorded there.
    """
    return _replaced(value, change, "", undo, [])


def _replaced(value: object, change: Change, path: str, undo: Undo | None, above: list[int]) -> object:
    if isinstance(value, Tensor):
        return change(path, value)
    if type(value) in _PLAIN or len(above) >= DEEPEST or id(value) in above:
        return value
    old = items_of(value)
    if old is None or (undo is not None and is_registered(value)):
        return value
    old = list(old)
    above.append(id(value))
    new = [_replaced(item, change, path + step, undo, above) for step, item in old]
    above.pop()
    if all(a is b for (_, a), b in zip(old, new, strict=True)):
        return value
    if undo is not None and not isinstance(value, tuple):
        _exchange(value, [item for _, item in old], new, undo)
        return value
    try:
        return rebuilt(value, new)
    except Exception:  # a container that can't be copied stays as it is, and its tensors unwatched
        return value


def _exchange(value: object, old: list[object], new: list[object], undo: Undo) -> None:
    try:
        for key, was, now in zip(keys_of(value), old, new, strict=True):
            if was is not now:
                set_item(value, key, now)
                undo.append((value, key, was, now))
    except Exception:  # one that takes no items, such as a read-only mapping, stays as it is
        return

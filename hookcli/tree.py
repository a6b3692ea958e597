"""The tensors inside nested values: lists, tuples, named tuples, mappings and dataclasses, whatever their nesting.

`torch.utils._pytree` knows neither plain dataclasses nor paths in PyTorch's spelling, and rebuilds containers even
where nothing changed; hooks must hand back the very object they were given unless a tensor in it was replaced.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Deeper than any real output; a bound, because a dataclass may refer back to its owner.
_DEEPEST = 12


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Each tensor with its path, such as `["out"]`, `[0].hidden`, or "" where the value is itself a tensor."""
    if isinstance(value, Tensor):
        yield path, value
    elif depth < _DEEPEST:
        for step, item in _children(value):
            yield from leaves(item, path + step, depth + 1)


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a call received; a lone positional argument has the path "", as a lone output has."""
    if len(args) == 1 and not kwargs:
        yield from leaves(args[0])
    else:
        yield from leaves(args)
        yield from leaves(kwargs)


Change = Callable[[str, Tensor], Tensor]


def base(tensor: Tensor) -> Tensor:
    """The tensor that this one is a view of; itself where it is none."""
    found = tensor._base if tensor._is_view() else None
    return tensor if found is None else found


def shape_of(tensor: Tensor) -> list[int]:
    """The tensor's shape; -1 for the sizes of a nested tensor that differ between its parts."""
    if not tensor.is_nested:
        return list(tensor.shape)
    return [tensor.size(0)] + [-1] * (tensor.dim() - 1)


def shape_text(tensor: Tensor) -> str:
    """10x3x224x224; `*` for a size that varies."""
    return "x".join("*" if size < 0 else str(size) for size in shape_of(tensor)) or "scalar"


def dtype_text(tensor: Tensor) -> str:
    """float32."""
    return str(tensor.dtype).removeprefix("torch.")


def type_text(module: nn.Module) -> str:
    """Conv2d; of a module under `fully_shard`, which gives it a class of its own, the class that it had."""
    bases = type(module).__bases__
    return bases[-1].__name__ if bases[0].__name__ == "FSDPModule" else type(module).__name__


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has its values in strided memory, as most operators want them: not nested, quantized or on the
    meta device, and of no class that has ways of its own to compute (MaskedTensor, DTensor)."""
    own = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return tensor.layout is torch.strided and not (own or tensor.is_quantized or tensor.is_nested or tensor.is_meta)


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds but a part of the tensor (a DTensor, which nobody has who has not imported it)."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def lone(shapes: Sequence[Any]) -> Any:
    """What a row shows of several shapes: a lone one itself, None for none."""
    return shapes[0] if len(shapes) == 1 else shapes or None


class Undo(list[tuple[Any, Any, Any, Any]]):
    """What was put into lists and mappings: (container, key, was, is). Calling it puts the old items back."""

    def __call__(self) -> None:
        for container, key, was, now in reversed(self):
            present = key < len(container) if isinstance(container, list) else key in container
            if present and container[key] is now:
                container[key] = was


def replace_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Change, undo: Undo
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`replace` for the arguments of a call, with the paths that `arguments` gives.

    Lists and mappings stay the objects that they are, since the callee may add to them for the caller to find: their
    items are exchanged for the time of the call, until `undo` is called.
    """
    if len(args) == 1 and not kwargs:
        return (replace(args[0], change, undo=undo),), kwargs
    return replace(args, change, undo=undo), {k: replace(v, change, f'["{k}"]', 1, undo) for k, v in kwargs.items()}


def replace(value: Any, change: Change, path: str = "", depth: int = 0, undo: Undo | None = None) -> Any:
    """The value with `change(path, tensor)` in place of each tensor; the same object where no tensor changed.

    Containers are rebuilt, or with `undo` lists and mappings are changed and the way back noted there.
    """
    if isinstance(value, Tensor):
        return change(path, value)
    if depth >= _DEEPEST:
        return value
    old = list(_children(value))
    new = [replace(item, change, path + step, depth + 1, undo) for step, item in old]
    if all(a is b for (_, a), b in zip(old, new, strict=True)):
        return value
    if undo is not None and isinstance(value, (list, MutableMapping)):
        keys = range(len(value)) if isinstance(value, list) else list(value)
        for key, (_, was), now in zip(keys, old, new, strict=True):
            if was is not now:
                undo.append((value, key, was, now))
                value[key] = now
        return value
    try:
        return _rebuilt(value, new)
    except Exception:  # a container that can't be copied stays as it is, and its tensors unwatched
        return value


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", item
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, item in zip(value._fields, value, strict=True):
            yield f".{name}", item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield f".{field.name}", getattr(value, field.name, None)


def _rebuilt(value: Any, items: list[Any]) -> Any:
    """A container like `value` that holds `items`. Subclasses are copied: how to construct them is not known."""
    if isinstance(value, tuple):
        return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    if type(value) is list:
        return items
    twin = copy.copy(value)
    if isinstance(value, list):
        twin[:] = items
    elif isinstance(value, Mapping):
        for key, item in zip(value, items, strict=True):
            twin[key] = item
    else:
        for field, item in zip(fields(value), items, strict=True):
            object.__setattr__(twin, field.name, item)  # works on frozen dataclasses too
    return twin

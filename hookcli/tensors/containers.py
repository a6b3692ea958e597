"""Objects that tensors come in: containers, which can be copied with other items, and others, which are looked into."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from hookcli.tensors.torch_private import registered_nodes


class Walked:
    """The tensors, with their paths, that a walk has found in a value of the type `kind`; a walk finds them again.

    `unseen`: what it could not look into, with its path.
    """

    def __init__(
        self, kind: str, tensors: Sequence[tuple[str, Tensor]] = (), unseen: Sequence[tuple[str, Walked]] = ()
    ) -> None:
        self.kind, self.tensors, self.unseen = kind, tensors, unseen


def kind_of(value: object) -> str:
    """The name of the value's type, or of the type of what was walked."""
    return value.kind if isinstance(value, Walked) else type(value).__name__


def items_of(value: Any) -> Iterable[tuple[str, object]] | None:
    """The items of a container, each with its step of the path; None for a value that is not a container."""
    if type(value) in (tuple, list):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if type(value) is Walked:
        return value.tensors
    if isinstance(value, Mapping):
        return [(f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", item) for name, item in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple, deque)):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{name}", getattr(value, name, None)) for name in _attributes(value)]
    return _registered(value) if is_registered(value) else None


def _attributes(value: Any) -> list[str]:
    """The fields of a dataclass and other attributes set on it."""
    names = [field.name for field in fields(value)]
    return names + [name for name in getattr(value, "__dict__", ()) if name not in names]


def is_registered(value: object) -> bool:
    """True for a value that only pytree can take apart."""
    is_container = isinstance(value, (tuple, list, deque, Mapping)) or is_dataclass(value)
    return type(value) in registered_nodes and not is_container


def _registered(value: object) -> list[tuple[str, object]] | None:
    node = registered_nodes[type(value)]
    try:
        if (named := node.flatten_with_keys_fn) is not None:
            return [(str(key), item) for key, item in named(value)[0]]
        return [(f"[{index}]", item) for index, item in enumerate(node.flatten_fn(value)[0])]
    except Exception:  # the model's own function failed on this value
        return None


def keys_of(value: object) -> Sequence[object]:
    """The keys of a container's items, in the order of `items_of`."""
    if isinstance(value, (list, deque)):
        return range(len(value))
    return list(value) if isinstance(value, Mapping) else _attributes(value)


def get_item(container: object, key: Any) -> object:
    """The current item; None if it is gone."""
    if isinstance(container, (list, deque)):
        return container[key] if key < len(container) else None
    return container.get(key) if isinstance(container, Mapping) else getattr(container, key, None)


def set_item(container: object, key: Any, value: object) -> None:
    """Put an item into a list, mapping or dataclass, also into a frozen one."""
    if isinstance(container, (list, deque, MutableMapping)):
        container[key] = value
    else:
        object.__setattr__(container, key, value)


def rebuilt(value: object, items: list[object]) -> object:
    """A container like `value` that holds `items`. Subclasses are copied: how to construct them is not known."""
    if isinstance(value, tuple):
        return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    if type(value) is list:
        return items
    if is_registered(value):
        node = registered_nodes[type(value)]
        return node.unflatten_fn(items, node.flatten_fn(value)[1])
    twin = copy.copy(value)
    for key, new in zip(keys_of(value), items, strict=True):
        set_item(twin, key, new)
    return twin


_LEVELS, _MOST = 4, 128  # how deep is looked, and at how many objects in all
_NEVER = (type, ModuleType, FunctionType, MethodType, nn.Module)  # they hold tensors that nobody passes on
_LISTS = (list, tuple, set, frozenset, deque)
_ITEMS: tuple[tuple[Any, Any], ...] = (*((kind, kind.__iter__) for kind in _LISTS), (dict, dict.values))
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
_BUILT_IN = frozenset((*_PLAIN, *_LISTS, dict))  # without attributes
_OWN = frozenset(vars(nn.Module()))


def holds_tensors(value: object) -> bool:
    """True if there is a tensor in the value, or in an object within it: in a graph batch, or a dataclass."""
    return next(hidden_tensors(value), None) is not None


def hidden_tensors(*values: object) -> Iterator[Tensor]:
    """The tensors in attributes of these objects, and in lists and objects there.

    No property, no `__getattr__` and no iterator is called.
    """
    level: list[object] = list(values)
    looked = 0
    for _ in range(_LEVELS):
        below: list[object] = []
        for item in level:
            looked += 1
            if isinstance(item, Tensor):
                yield item
            elif looked <= _MOST and type(item) not in _PLAIN:
                below += islice(_held(item), _MOST)
        level = below
    yield from (item for item in level if isinstance(item, Tensor))


def kept_tensors(module: nn.Module) -> Iterator[Tensor]:
    """The tensors in a module's buffers and attributes, except those that every module has."""
    yield from module.buffers(recurse=False)
    yield from hidden_tensors(*(x for name, x in vars(module).items() if name not in _OWN and type(x) not in _PLAIN))


def _held(value: object) -> Iterator[object]:
    if isinstance(value, _NEVER):
        return
    items: Any = next((items for kind, items in _ITEMS if isinstance(value, kind)), None)
    if items is not None:
        yield from items(value)
    if type(value) in _BUILT_IN:
        return
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        attributes = {}
    if type(attributes) is dict:
        yield from attributes.values()
    for owner in type(value).__mro__:
        for slot in vars(owner).values():
            if isinstance(slot, MemberDescriptorType):
                try:
                    yield slot.__get__(value)
                except AttributeError:  # nothing was put there yet
                    continue

"""A short look for tensors in objects that are not containers. It calls no code of the objects' classes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

_LEVELS, _MOST = 4, 128  # how deep is looked, and at how many objects in all
_NEVER = (type, ModuleType, FunctionType, MethodType, nn.Module)  # they hold tensors that nobody passes on
_LISTS = (list, tuple, set, frozenset, deque)
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
_BUILT_IN = frozenset((*_PLAIN, *_LISTS, dict))  # without attributes
_OWN = frozenset(vars(nn.Module()))


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
    kind: Any = next((kind for kind in _LISTS if isinstance(value, kind)), None)
    if kind is not None:
        yield from kind.__iter__(value)
    if isinstance(value, dict):
        yield from dict.values(value)
    if type(value) not in _BUILT_IN:
        yield from _attributes(value)


def _attributes(value: object) -> Iterable[object]:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        attributes = {}
    if type(attributes) is dict:
        yield from attributes.values()
    for kind in type(value).__mro__:
        for slot in vars(kind).values():
            if isinstance(slot, MemberDescriptorType):
                try:
                    yield slot.__get__(value)
                except AttributeError:  # nothing was put there yet
                    continue

"""Tensors that a walk can't reach: inside objects that are not containers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from itertools import islice
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from hookcli.report import Skipped
from hookcli.tensors import tree
from hookcli.tensors.tree import Unseen

_LEVELS, _MOST, _EACH = 4, 64, 8  # how deep is looked, at how many objects in all, and at how many items of each
_NEVER = (type, ModuleType, FunctionType, MethodType, nn.Module)  # they hold tensors that nobody passes on
_LISTS = (list, tuple, set, frozenset, deque)


class UnreachableTensors:
    """Walks values as `tree` does, and notes, once for each module, objects with tensors that it can't reach."""

    def __init__(self) -> None:
        self._noted: dict[Skipped, None] = {}
        self.places: set[str] = set()

    def leaves(self, fqn: str, value: Any) -> list[tuple[str, Tensor]]:
        """The tensors in what the module of this name returned."""
        met: Unseen = []
        found = list(tree.leaves(value, "", met))
        self._note(fqn, met)
        return found

    def arguments(self, fqn: str, args: tuple[Any, ...], kwargs: Any) -> list[tuple[str, Tensor]]:
        """The tensors that the module received."""
        met: Unseen = []
        found = list(tree.arguments(args, kwargs, met))
        self._note(fqn, met)
        return found

    def _note(self, fqn: str, met: Unseen) -> None:
        for path, value in met:
            if reason := _why(value):
                self._noted[Skipped(fqn, reason, path if len(path) < 80 else f"{path[:76]}...")] = None
                self.places.add(fqn)

    def skipped(self) -> list[Skipped]:
        """The notes."""
        return list(self._noted)


def _why(value: Any) -> str:
    """The reason why the tensors of this value can't be seen; "" if a short look finds none."""
    if isinstance(value, (list, tuple, deque, dict)) or is_dataclass(value):  # a walk met it, and did not enter
        return f"lies deeper than {tree.DEEPEST} levels: tensors there are not looked for"
    return f"holds tensors that can't be seen ({type(value).__name__})" if holds_tensors(value) else ""


def holds_tensors(value: Any) -> bool:
    """True if an object holds a tensor in its attributes, or in lists and objects there.

    Calls no code of the object's class: no property, no `__getattr__`, no iterator.
    """
    level: list[Any] = [value]
    looked = 0
    for _ in range(_LEVELS):
        below: list[Any] = []
        for item in level:
            looked += 1
            if isinstance(item, Tensor):
                return True
            if looked > _MOST:
                return False
            below += islice(_held(item), _MOST)
        level = below
    return any(isinstance(item, Tensor) for item in level)


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, _NEVER):
        return
    kind: Any = next((kind for kind in _LISTS if isinstance(value, kind)), None)
    if kind is not None:
        yield from islice(kind.__iter__(value), _EACH)
    if isinstance(value, dict):
        yield from islice(dict.values(value), _EACH)
    yield from _attributes(value)


def _attributes(value: Any) -> Iterable[Any]:
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    if type(own) is dict:
        yield from own.values()
    for kind in type(value).__mro__:
        for slot in vars(kind).values():
            if isinstance(slot, MemberDescriptorType):
                try:
                    yield slot.__get__(value)
                except AttributeError:  # nothing was put there yet
                    continue

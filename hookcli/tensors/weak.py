"""A dictionary by the identity of its keys, which it does not keep alive."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Generic, TypeVar
from weakref import ref

K = TypeVar("K")
V = TypeVar("V")


class WeakIds(Generic[K, V]):
    """A dictionary that drops an entry when its key dies, in a callback written in C.

    Python drops an exception that is raised in such a callback, also the KeyboardInterrupt of a Ctrl-C that comes while
    it runs, and `WeakKeyDictionary` and `WeakTensorKeyDictionary` have callbacks in Python.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[K], V]] = {}

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[id(key)] = ref(key, partial(self._entries.pop, id(key))), value

    def __delitem__(self, key: K) -> None:
        del self._entries[id(key)]

    def __contains__(self, key: K) -> bool:
        return id(key) in self._entries

    def get(self, key: K) -> V | None:
        entry = self._entries.get(id(key))
        return None if entry is None else entry[1]

    def items(self) -> Iterator[tuple[K, V]]:
        """The keys that are alive, with their values; entries may come and go meanwhile."""
        for reference, value in list(self._entries.values()):
            if (key := reference()) is not None:
                yield key, value

"""A bounded store of the values used last: a model that takes another path in each step defines many layouts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_ENTRIES, _ROWS = 32, 2**17  # kept in any case (a model of many parts needs a layout for each), and rows beyond these


class Recent(Generic[K, V]):
    """The values that were used last: 32 of them, and more as long as all have no more than 2**17 rows."""

    def __init__(self) -> None:
        self._held: dict[K, tuple[V, int]] = {}
        self._rows = 0

    def get(self, key: K) -> V | None:
        """The value of a key, which counts as used; None if it is not held."""
        if key not in self._held:
            return None
        self._held[key] = self._held.pop(key)
        return self._held[key][0]

    def add(self, key: K, value: V, rows: int) -> V:
        """Hold a value of so many rows under a new key, and return it; the values used least recently make room."""
        self._held[key] = value, rows
        self._rows += rows
        while len(self._held) > _ENTRIES and self._rows > _ROWS:
            self._rows -= self._held.pop(next(iter(self._held)))[1]
        return value

    def clear(self) -> None:
        """Forget all values."""
        self._held.clear()
        self._rows = 0

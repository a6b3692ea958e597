"""Levels of depth: how deep a module lies, as people count it. Free of torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class Levels:
    """Depths of fqns. `containers` are no level of their own: lists of modules, and a model's lone child."""

    def __init__(self, containers: Iterable[str] = ()) -> None:
        self.containers = frozenset(containers)

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Levels:
        """The levels of the run that a report's `meta` describes."""
        return cls(meta.get("containers", ()))

    def depth(self, fqn: str) -> int:
        """The number of names in an fqn that are a level; 0 for the model itself."""
        if not self.containers:
            return fqn.count(".") + 1 if fqn else 0
        return sum(prefix not in self.containers for prefix in _prefixes(fqn))

    def owner(self, fqn: str, depth: float) -> str:
        """The module at this depth that an fqn lies in; the fqn itself if it is no deeper."""
        return next((prefix for prefix in _prefixes(fqn) if self.depth(prefix) >= depth), fqn)


def numbered_lists(names: Iterable[str]) -> list[str]:
    """The parts of names that have only numbered parts, such as `layers`: no level of depth, as lists of modules."""
    children: dict[str, set[str]] = defaultdict(set)
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            children[".".join(parts[:depth])].add(parts[depth])
    return [owner for owner, below in children.items() if all(map(str.isdecimal, below))]


def _prefixes(fqn: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` for `a.b.c`."""
    parts = fqn.split(".") if fqn else []
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))

"""Levels of depth: how deep a module or operator lies, as people count it. Free of torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hookcli.table.meta import Meta
from hookcli.table.names import operator_owner, prefixes


class Levels:
    """Depths of fqns. `containers` are no level of their own: lists of modules, and a model's lone child."""

    def __init__(self, containers: Iterable[str] = ()) -> None:
        self.containers = frozenset(containers)

    @classmethod
    def of(cls, meta: Meta) -> Levels:
        """The levels of the run that a report's `meta` describes."""
        return cls(meta.get("containers", ()))

    def depth(self, fqn: str) -> int:
        """The number of names in an fqn that are a level; 0 for the model itself."""
        return sum(prefix not in self.containers for prefix in prefixes(fqn))

    def owner(self, fqn: str, depth: float) -> str:
        """The module at this depth that an fqn lies in; the fqn itself if it is no deeper."""
        reached = 0
        for prefix in prefixes(fqn):
            reached += prefix not in self.containers
            if reached >= depth:
                return prefix
        return fqn

    def shown(self, fqn: str, depth: float, *, operators: bool = False) -> str:
        """The name under which a table down to this depth shows a place: its own, or a module's around it.

        `operators`: also show the operators of modules at this depth, although these lie one level deeper.
        """
        module = operator_owner(fqn) if operators else None
        least = self.depth(fqn if module is None else module)
        return self.owner(fqn, depth) if least > depth else fqn


def numbered_lists(names: Iterable[str]) -> list[str]:
    """The parts of names that have only numbered parts, such as `layers`: no level of depth, as lists of modules."""
    children: dict[str, set[str]] = defaultdict(set)
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            children[".".join(parts[:depth])].add(parts[depth])
    return [owner for owner, below in children.items() if all(map(str.isdecimal, below))]

"""The tree of places in a model: modules, and the parameters and operators in them. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from hookcli.table.names import is_operator, owner_of, relative


class Node:
    """A place; "" is the model itself, the only one without an `owner`.

    `name` is its own below its owner, such as `conv1`, or `:add_1` of an operator. `level` is its depth in tables.
    `repeats` is the number of blocks that its own name stands for, if repeated ones are folded.
    """

    __slots__ = ("fqn", "is_operator", "level", "name", "owner", "parts", "repeats")

    def __init__(self, fqn: str = "", owner: Node | None = None, level: int = 0) -> None:
        self.fqn, self.owner, self.level = fqn, owner, level
        self.is_operator = is_operator(fqn)
        self.name = relative(fqn, owner.fqn) if owner else ""
        self.parts: list[Node] = []
        self.repeats = 1

    def chain(self) -> Iterator[Node]:
        """The place itself and the modules around it, from the innermost to the model."""
        node: Node | None = self
        while node:
            yield node
            node = node.owner

    def around(self) -> Iterator[Node]:
        """The modules around the place, from the innermost to the model."""
        return self.owner.chain() if self.owner else iter(())

    def at(self, depth: float) -> Node:
        """The module at this depth that the place lies in; the place itself if it is no deeper."""
        node = self
        while node.owner and node.owner.owner and node.owner.level >= depth:
            node = node.owner
        return node

    def shown(self, depth: float, *, operators: bool = False) -> Node:
        """The place under which a table down to this depth shows it: itself, or a module around it.

        `operators`: also show the operators of modules at this depth, although these lie one level deeper.
        """
        module = self.owner if operators and self.is_operator and self.owner else self
        return self.at(depth) if module.level > depth else self

    @property
    def blocks(self) -> int:
        """The number of modules that a folded place stands for: 48 for blocks.0-11.fc.0-3."""
        return math.prod(node.repeats for node in self.chain())


class Tree:
    """Places by name. One that is asked for is added, with all around it.

    `containers` are not a level of their own: lists of modules, and a model's lone child.
    """

    def __init__(self, containers: Iterable[str] = ()) -> None:
        self.containers = frozenset(containers)
        self._nodes = {"": Node()}

    def __getitem__(self, fqn: str) -> Node:
        missing = []
        while fqn not in self._nodes:
            missing.append(fqn)
            fqn = owner_of(fqn)
        node = self._nodes[fqn]
        for inner in reversed(missing):
            part = Node(inner, node, node.level + (inner not in self.containers))
            node.parts.append(part)
            node = self._nodes[inner] = part
        return node

    def add(self, names: Iterable[str]) -> None:
        """Add the places of these names, and all around them."""
        for name in names:
            self[name]

    def __iter__(self) -> Iterator[Node]:
        """Every place after the module around it."""
        return iter([*self._nodes.values()])

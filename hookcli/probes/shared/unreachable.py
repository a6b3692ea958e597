"""Tensors that a walk can't reach: inside objects that are not containers."""

from __future__ import annotations

from collections import deque
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor

from hookcli.table import Skipped
from hookcli.tensors import tree
from hookcli.tensors.hidden import hidden_tensors
from hookcli.tensors.tree import Unseen


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
        return list(self._noted)


def _why(value: Any) -> str:
    """The reason why the tensors of this value can't be seen; "" if a short look finds none."""
    if isinstance(value, (list, tuple, deque, dict)) or is_dataclass(value):  # a walk met it, and did not enter
        return f"lies deeper than {tree.DEEPEST} levels: tensors there are not looked for"
    holds = next(hidden_tensors(value), None) is not None
    return f"holds tensors that can't be seen ({type(value).__name__})" if holds else ""

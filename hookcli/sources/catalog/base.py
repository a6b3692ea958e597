"""An entry of a catalog, and helpers that read the syntax trees of every library."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of a library.

    `kind` is torchvision's kind of task or timm's family. `params` is the number that torchvision publishes with its
    weights, else None. `inputs` are the shapes of its natural input, empty if unknown: one tensor, or two frames for
    optical flow; for detection one image, given in a list. `weights` are the tags of timm's weights, the default first;
    `tasks` names the class for each task of one of Transformers' types, the default task first.
    """

    name: str
    kind: str | None = None
    params: int | None = None
    inputs: tuple[tuple[int, ...], ...] = ()
    weights: tuple[str, ...] = ()
    tasks: dict[str, str] | None = None


def assigned(module: ast.Module) -> dict[str, ast.expr]:
    """The expressions that a module assigns to names at its first level."""
    return {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def literal(node: ast.expr) -> Any:
    """The value of a literal; None for any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None

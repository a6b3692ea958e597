"""Graphs in Graphviz's language whose nodes lie in frames, one for each module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hookcli.reporters.digraph import Digraph

T = TypeVar("T")
_FRAME = {"style": "rounded", "color": "gray70", "fontname": "Helvetica", "fontsize": "11", "fontcolor": "gray30"}


def draw_framed(
    graph: Digraph,
    nodes: Sequence[T],
    frame_of: Callable[[T, int], str | None],
    draw: Callable[[Digraph, T, str], object],
    around: str = "",
    depth: int = 1,
) -> None:
    """Draw the nodes that lie in the module `around` itself, and the others in frames of its parts.

    `frame_of(node, depth)` is the module at this depth that a node lies in; None for a node that lies in none so deep.
    """
    parts: dict[str, list[T]] = {}
    for node in nodes:
        if (inner := frame_of(node, depth)) is None:
            draw(graph, node, around)
        else:
            parts.setdefault(inner, []).append(node)
    for fqn, inside in parts.items():
        with graph.frame(fqn, label=fqn, **_FRAME):
            draw_framed(graph, inside, frame_of, draw, fqn, depth + 1)

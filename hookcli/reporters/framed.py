"""Graphs in Graphviz's language whose nodes lie in frames, one for each module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from graphviz import Digraph, escape, nohtml

T = TypeVar("T")
_FRAME = {"style": "rounded", "color": "gray70", "fontname": "Helvetica", "fontsize": "11", "fontcolor": "gray30"}


def safe(name: str) -> str:
    """Escape a name for Graphviz, which reads angle brackets as HTML and backslashes as escapes."""
    found: str = nohtml(name.replace("\\", "%5C"))
    return found


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
        with graph.subgraph(name=safe(f"cluster_{fqn}"), graph_attr={"label": escape(fqn), **_FRAME}) as frame:
            draw_framed(frame, inside, frame_of, draw, fqn, depth + 1)

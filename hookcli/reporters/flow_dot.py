"""The forward flow of tensors in Graphviz's language."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphviz import Digraph, escape

from hookcli.reporters.graphviz_looks import frame, new_graph
from hookcli.table import Report, Row, formatting
from hookcli.table.levels import Levels

_FITTING = 40  # nodes, where no depth is asked for
_LOOKS = {
    "function": {"style": "filled,rounded", "fillcolor": "lightblue", "color": "lightblue4", "height": "0.3"},
    "input": {"style": "dashed,rounded"},
    "output": {"style": "dashed,rounded"},
}


@dataclass(slots=True)
class _Node:
    """A call, or all calls inside a module at the depth that is shown, as long as they follow each other."""

    name: str
    fqn: str
    rows: list[Row] = field(default_factory=list)


def drawn_flow(report: Report, depth: float | None) -> Digraph:
    """Draw the flow of one report: modules as boxes, functions between them, shapes at the arrows.

    `depth` counts as in tables; None is the depth that fits about 40 boxes.
    """
    levels = Levels.of(report.meta)
    rows = _leading_to_results(report.rows)
    nodes = _nodes(rows, levels, _fitting_depth(rows, levels) if depth is None else depth)
    graph = new_graph(report)
    graph.attr("edge", fontname="Helvetica", fontsize="8", fontcolor="gray40", color="gray40", arrowsize="0.6")
    _draw(graph, nodes, levels, 0, "")
    for (start, end), shapes in _edges(nodes).items():
        graph.edge(start, end, label=escape("\n".join(f" {shape}" for shape in shapes)))
    return graph


def _leading_to_results(rows: Sequence[Row]) -> list[Row]:
    """Leave out functions whose result nothing uses."""
    used: set[int] = set()
    for row in reversed(rows):
        if row["kind"] != "function" or row["id"] in used:
            used.update((row["id"], *row["inputs"]))
    return [row for row in rows if row["id"] in used]


def _fitting_depth(rows: Sequence[Row], levels: Levels) -> float:
    """The greatest depth with about 40 nodes, or the least one."""
    deepest = max((levels.depth(row.fqn) for row in rows), default=1)
    depths = (depth for depth in range(deepest + 1, 0, -1) if len(_nodes(rows, levels, depth)) <= _FITTING)
    return next(depths, 1)


def _nodes(rows: Sequence[Row], levels: Levels, depth: float) -> list[_Node]:
    nodes: list[_Node] = []
    for row in rows:
        owner = row.fqn if math.isinf(depth) else levels.owner(row.fqn, depth)
        inside = owner != row.fqn or (row["kind"] == "function" and levels.depth(owner) >= depth)
        if not (inside and nodes and nodes[-1].fqn == owner and nodes[-1].name.startswith("in ")):
            name = f"in {row['id']}" if inside else f"call {row['id']}"
            nodes.append(_Node(name, owner))
        nodes[-1].rows.append(row)
    return nodes


def _draw(graph: Digraph, nodes: Sequence[_Node], levels: Levels, depth: int, around: str) -> None:
    """Draw the nodes that lie in a module, those of its parts in frames."""
    parts: dict[str, list[_Node]] = {}
    for node in nodes:
        owner = levels.owner(node.fqn, depth + 1)
        framed = owner != around and (owner != node.fqn or (node.rows[0]["kind"] == "function" and _is_call(node)))
        if framed:
            parts.setdefault(owner, []).append(node)
        else:
            graph.node(node.name, escape("\n".join(_lines(node, around))), **_look(node))
    for fqn, inside in parts.items():
        with frame(graph, fqn) as box:
            _draw(box, inside, levels, depth + 1, fqn)


def _is_call(node: _Node) -> bool:
    return node.name.startswith("call ")


def _look(node: _Node) -> dict[str, str]:
    return _LOOKS.get(node.rows[0]["kind"], {}) if _is_call(node) else {"penwidth": "2"}


def _lines(node: _Node, around: str) -> Iterator[str]:
    first = node.rows[0]
    if not _is_call(node):
        yield node.fqn.removeprefix(f"{around}.") or "(model)"
        yield formatting.counted(len(node.rows), "call")
        return
    if first["kind"] == "module":
        yield first.fqn.removeprefix(f"{around}.")
    yield first["type"]
    if shape := first["output_shape"]:
        yield formatting.shape(shape)


def _edges(nodes: Sequence[_Node]) -> dict[tuple[str, str], list[str]]:
    """The arrows between nodes, each with the shapes that flow there."""
    of = {row["id"]: node.name for node in nodes for row in node.rows}
    edges: dict[tuple[str, str], dict[str, None]] = {}
    for node in nodes:
        for row in node.rows:
            for start, shape in zip(row["inputs"], row["input_shape"] or (), strict=True):
                if start in of and of[start] != node.name:
                    edges.setdefault((of[start], node.name), {})[formatting.shape(shape)] = None
    return {ends: list(shapes) for ends, shapes in edges.items()}

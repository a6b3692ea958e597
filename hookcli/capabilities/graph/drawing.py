"""The autograd graph in Graphviz's language."""

from __future__ import annotations

import math

from hookcli.reporters.digraph import Digraph
from hookcli.reporters.framed import draw_framed
from hookcli.table import Report, Row, formatting


def draw(graph: Digraph, report: Report, depth: float | None) -> None:
    """Draw each node in a box for the module that made it; with a depth, one node per module at that depth."""
    rows = report.rows
    if depth is None or math.isinf(depth):
        draw_framed(graph, rows, _module_at, _draw_node)
        names = {row["id"]: str(row["id"]) for row in rows}
    else:
        names = {row["id"]: ".".join(_owner(row)[: int(depth)]) for row in rows}
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(names[row["id"]], []).append(row)
        for name, members in groups.items():
            spent = sum(row["us"] or 0 for row in members)
            count = f"{len(members)} node{'s' * (len(members) > 1)}"
            graph.node(name, f"{name or '(model)'}\n{count}, {formatting.duration(spent / 1e6)}")
    edges = {(names[row["id"]], names.get(after)): None for row in rows for after in row["next"]}
    for start, end in edges:
        if end is not None and end != start:
            graph.edge(start, end)


def _owner(row: Row) -> list[str]:
    """Return the parts of the name of a node's module."""
    parts = row.fqn.split(".") if row.fqn else []
    return parts[:-1] if row["node"] == "AccumulateGrad" else parts


def _module_at(row: Row, depth: int) -> str | None:
    parts = _owner(row)
    return ".".join(parts[:depth]) if len(parts) >= depth else None


def _draw_node(graph: Digraph, row: Row, _: str) -> None:
    parameter = row.fqn if row["node"] == "AccumulateGrad" else ""
    shape = formatting.shape(row["in_shape"]) if row["in_shape"] else ""
    l2 = f"l2 {formatting.number(row['l2'])}" if row.stats else str(row.get("note", ""))
    lines = filter(None, (row["node"], parameter, shape, l2))
    graph.node(str(row["id"]), "\n".join(lines), **_look(row))


def _look(row: Row) -> dict[str, str]:
    if not row["fired"]:
        return {"style": "dashed,rounded", "fontcolor": "gray50"}
    if row["fired"] > 1:
        return {"penwidth": "2"}
    return {"fillcolor": "lightblue"} if row["node"] == "AccumulateGrad" else {}

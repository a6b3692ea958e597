"""The autograd graph in Graphviz's language, and reports of graphs as files in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from graphviz import Digraph, escape

from hookcli.reporters.base import Reporter
from hookcli.reporters.flow_dot import drawn_flow
from hookcli.reporters.graphviz_looks import frame, new_graph, safe_name
from hookcli.table import Report, Row, formatting
from hookcli.table.grouping import View
from hookcli.table.printable import printable


class DotReporter(Reporter):
    """The autograd graph, or the forward flow of tensors: nodes in boxes for the modules that made them.

    With a depth, one node per module at that depth. Nodes that never fired are dashed.
    """

    suffixes = (".dot", ".gv")
    needs_one = (("id", "next"), ("id", "inputs"))
    commands = ("hookcli graph", "hookcli flow")

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a graph per report."""
        return "".join(drawn_graph(report, view.depth).source for report in reports)


def drawn_graph(report: Report, depth: float | None) -> Digraph:
    """Draw the graph of one report, or its flow of tensors."""
    report = printable(report)
    if any(column.name == "inputs" for column in report.columns) or any(
        "inputs" in row.values for row in report.rows[:1]
    ):
        return drawn_flow(report, depth)
    graph = new_graph(report)
    if depth is None or math.isinf(depth):
        _draw_boxes(graph, _by_owner(report.rows), "")
        names = {row["id"]: str(row["id"]) for row in report.rows}
    else:
        names = {row["id"]: ".".join(_owner(row)[: int(depth)]) for row in report.rows}
        _draw_groups(graph, report.rows, names)
    for start, end in dict.fromkeys(_edges(report.rows, names)):
        graph.edge(_node_id(start), _node_id(end))
    return graph


def _edges(rows: Sequence[Row], names: dict[int, str]) -> Iterator[tuple[str, str]]:
    for row in rows:
        for after in row["next"]:
            if after in names and names[row["id"]] != names[after]:
                yield names[row["id"]], names[after]


def _node_id(name: str) -> str:
    """Escape the name of a node, in which a colon would begin a port."""
    return safe_name(name.replace(":", "%3A"))


Tree = dict[str, Any]


def _by_owner(rows: Sequence[Row]) -> Tree:
    """Nest rows by the parts of their modules' names; the rows of each level are under ""."""
    tree: Tree = {}
    for row in rows:
        level = tree
        for part in _owner(row):
            level = level.setdefault(part, {})
        level.setdefault("", []).append(row)
    return tree


def _owner(row: Row) -> list[str]:
    """Return the parts of the name of a node's module."""
    parts = row.fqn.split(".") if row.fqn else []
    return parts[:-1] if row["node"] == "AccumulateGrad" else parts


def _draw_boxes(graph: Digraph, tree: Tree, fqn: str) -> None:
    for row in tree.get("", ()):
        graph.node(str(row["id"]), escape("\n".join(_lines(row))), **_look(row))
    for name, below in tree.items():
        if name:
            path = f"{fqn}.{name}".lstrip(".")
            with frame(graph, path) as box:
                _draw_boxes(box, below, path)


def _lines(row: Row) -> list[str]:
    parameter = row.fqn if row["node"] == "AccumulateGrad" else ""
    shape = formatting.shape(row["in_shape"]) if row["in_shape"] else ""
    l2 = f"l2 {formatting.number(row['l2'])}" if row.stats else str(row.get("note", ""))
    return [line for line in (row["node"], parameter, shape, l2) if line]


def _look(row: Row) -> dict[str, str]:
    if not row["fired"]:
        return {"style": "dashed,rounded", "fontcolor": "gray50"}
    if row["fired"] > 1:
        return {"penwidth": "2"}
    return {"fillcolor": "lightblue"} if row["node"] == "AccumulateGrad" else {}


def _draw_groups(graph: Digraph, rows: Sequence[Row], names: dict[int, str]) -> None:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(names[row["id"]], []).append(row)
    for name, members in groups.items():
        spent = sum(row["us"] or 0 for row in members)
        count = f"{len(members)} node{'s' if members[1:] else ''}"
        graph.node(_node_id(name), escape(f"{name or '(model)'}\n{count}, {formatting.duration(spent / 1e6)}"))

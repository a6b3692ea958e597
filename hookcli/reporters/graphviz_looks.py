"""Graphs that Graphviz draws: their looks, and names as it takes them."""

from __future__ import annotations

from graphviz import Digraph, escape, nohtml

from hookcli.reporters import footer
from hookcli.table import Report

_NODE = {"shape": "box", "style": "filled,rounded", "fillcolor": "white", "fontname": "Helvetica", "fontsize": "10"}
_TITLE = {"labelloc": "t", "fontname": "Helvetica"}
_CLUSTER = {"style": "rounded", "color": "gray70", "fontname": "Helvetica", "fontsize": "11", "fontcolor": "gray30"}


def new_graph(report: Report) -> Digraph:
    """Make an empty graph with the report's title."""
    title = f"{report.probe}: {footer.run_line(report)}"
    return Digraph(safe_name(report.model), graph_attr={"label": escape(title), **_TITLE}, node_attr=_NODE)


def frame(graph: Digraph, fqn: str) -> Digraph:
    """Make a frame in a graph for the parts of a module; a context manager."""
    return graph.subgraph(name=safe_name(f"cluster_{fqn}"), graph_attr={"label": escape(fqn), **_CLUSTER})


def safe_name(name: str) -> str:
    """Escape a name for Graphviz, which reads angle brackets as HTML and backslashes as escapes."""
    found: str = nohtml(name.replace("\\", "%5C"))
    return found

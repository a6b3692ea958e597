"""The looks of graphs that Graphviz draws, and names as it takes them."""

from __future__ import annotations

from graphviz import nohtml

NODE = {"shape": "box", "style": "filled,rounded", "fillcolor": "white", "fontname": "Helvetica", "fontsize": "10"}
TITLE = {"labelloc": "t", "fontname": "Helvetica"}
CLUSTER = {"style": "rounded", "color": "gray70", "fontname": "Helvetica", "fontsize": "11", "fontcolor": "gray30"}


def safe_name(name: str) -> str:
    """Escape a name for Graphviz, which reads angle brackets as HTML and backslashes as escapes."""
    found: str = nohtml(name.replace("\\", "%5C"))
    return found

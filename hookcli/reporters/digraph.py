"""Directed graphs in Graphviz's language, DOT (https://graphviz.org/doc/info/lang.html), and as images by its `dot`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hookcli.errors import UsageError, shortened

_ITSELF = "graph"  # another word


class Digraph:
    """A directed graph: statements, in the order in which they were made. Names, labels and values are plain text.

    `attributes`: the attributes of the graph itself (https://graphviz.org/doc/info/attrs.html).
    """

    def __init__(self, name: str, attributes: Mapping[str, str]) -> None:
        self._lines = [f"digraph {quoted(name)} {{\n"]
        self.attr(_ITSELF, **attributes)

    @property
    def source(self) -> str:
        """The text of the graph."""
        return "".join((*self._lines, "}\n"))

    def attr(self, kind: str, **attributes: str) -> None:
        """Set attributes of a `kind`: "graph" (or a frame itself), or from here on all of "node" or "edge"."""
        self._lines.append(f"\t{kind}{_listed(attributes)}\n")

    def node(self, name: str, label: str, **attributes: str) -> None:
        """Add a node; lines of the label are centred."""
        self._lines.append(f"\t{quoted(name)}{_listed({'label': label, **attributes})}\n")

    def edge(self, start: str, end: str, **attributes: str) -> None:
        """Add an edge between the nodes of these names."""
        self._lines.append(f"\t{quoted(start)} -> {quoted(end)}{_listed(attributes)}\n")

    @contextmanager
    def frame(self, name: str, **attributes: str) -> Iterator[None]:
        """Draw a frame around the nodes that are added within."""
        self._lines.append(f"subgraph {quoted(f'cluster_{name}')} {{\n")
        self.attr(_ITSELF, **attributes)
        yield
        self._lines.append("}\n")

    def drawn(self, form: str) -> bytes:
        """Return the image that `dot` draws in this format. Raises UsageError if it fails, OSError without it."""
        ran = subprocess.run(["dot", f"-T{form}"], input=self.source.encode(), capture_output=True, check=False)
        if ran.returncode:
            reason = shortened(ran.stderr.decode(errors="replace").strip() or f"exit code {ran.returncode}")
            raise UsageError(f"--format {form}: Graphviz's `dot` failed: {reason}")
        return ran.stdout


def quoted(text: str) -> str:
    """Return text as a string of DOT in which nothing has a meaning: neither HTML, nor a port, nor an escape.

    Within quotes DOT reads `\\"` as a quote; in labels Graphviz reads `\\\\` as a backslash, in names
    it keeps both.
    """
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def _listed(attributes: Mapping[str, str]) -> str:
    listed = " ".join(f"{name}={quoted(value)}" for name, value in attributes.items())
    return f" [{listed}]" if listed else ""

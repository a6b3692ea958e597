"""Reports of graphs and traces, and graphs read again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import torch

Cli = Callable[..., Any]


X = torch.tensor([[1.0, 2.0]])


def plain(source: str) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Nodes (with their labels) and edges as Graphviz reads them."""
    ran = subprocess.run(["dot", "-Tjson0"], input=source, capture_output=True, text=True, check=True)
    data = json.loads(ran.stdout)
    names = {item["_gvid"]: item for item in data["objects"] if "nodes" not in item and "subgraphs" not in item}
    edges = {(names[e["tail"]]["name"], names[e["head"]]["name"]) for e in data.get("edges", [])}
    return {item["name"]: item["label"] for item in names.values()}, edges

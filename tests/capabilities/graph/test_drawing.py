"""DOT and SVG: read again, every node and edge."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from reporters.graph_reports import Cli, X, plain
from support import Hand
from torch import Tensor, nn

import hookcli
from hookcli.errors import UsageError
from hookcli.reporters.dot import DotReporter
from hookcli.reporters.pictures import SvgReporter
from hookcli.table import Report
from hookcli.table.grouping import View

graphviz_only = pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")


class Unused(Hand):
    """Also with names that Graphviz must be kept from reading as its own."""

    def __init__(self) -> None:
        super().__init__()
        self.node = nn.Sequential(nn.Linear(2, 2))
        self.add_module('quo"te\\n', nn.Linear(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.node, getattr(self, 'quo"te\\n')):
            x = x + layer(x)
        self.first(x).exp()
        return super().forward(x)


def graphed(model: nn.Module, inputs: Any = X, **options: Any) -> Report:
    (report,) = hookcli.capture(model, inputs, ["graph"], name="net.py:Net", **options)
    return report


def dot(report: Report, depth: float | None = None) -> str:
    return DotReporter().render([report], View(depth=depth))


def edges_of(report: Report) -> set[tuple[str, str]]:
    return {(str(row["id"]), str(after)) for row in report.rows for after in row["next"] if after is not None}


@graphviz_only
@pytest.mark.parametrize("make", [Hand, Unused])
def test_graphviz_reads_every_node_and_edge(make: Callable[[], nn.Module]) -> None:
    report = graphed(make())
    nodes, edges = plain(dot(report))
    assert nodes.keys() == {str(row["id"]) for row in report.rows}
    assert edges == edges_of(report) and len(edges) >= len(report.rows) - 2
    for row in report.rows:
        assert nodes[str(row["id"])].startswith(row["node"])


def test_the_text_alone_has_every_edge() -> None:
    """Without Graphviz: an own reading of the lines."""
    report = graphed(Hand())
    source = dot(report)
    assert {(a, b) for a, b in re.findall(r'^\t"(\d+)" -> "(\d+)"$', source, re.MULTILINE)} == edges_of(report)
    assert source.startswith('digraph "net.py:Net" {') and source.count("{") == source.count("}")
    assert source.count("digraph") == 1


@graphviz_only
def test_edges_are_those_of_the_graph() -> None:
    """Names of both ends against `next_functions`, walked here."""
    report = graphed(Hand())
    names = {str(row["id"]): row["node"] for row in report.rows}
    found = Counter((names[a], names[b]) for a, b in plain(dot(report))[1])
    expected: Counter[tuple[str, str]] = Counter()
    waiting, seen = [Hand()(X).sum().grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        for after, _ in node.next_functions:
            if after is not None:
                waiting.append(after)
                expected[node.name().rpartition("::")[2], after.name().rpartition("::")[2]] += 1
    assert found == expected


@graphviz_only
def test_boxes_are_modules_and_what_never_fired_is_dashed() -> None:
    report = graphed(Unused())
    ran = subprocess.run(["dot", "-Tjson0"], input=dot(report), capture_output=True, text=True, check=True)
    data = json.loads(ran.stdout)["objects"]
    clusters = {item["label"] for item in data if item["name"].startswith("cluster_")}
    assert {"first", "relu", "out", "node", "node.0", "(loss)"} <= clusters
    dashed = {item["name"] for item in data if "dashed" in item.get("style", "")}
    assert dashed == {str(row["id"]) for row in report.rows if not row["fired"]}
    twice = graphed(Hand(), step=hookcli.Step(passes=2))
    ran = subprocess.run(["dot", "-Tjson0"], input=dot(twice), capture_output=True, text=True, check=True)
    thick = {o["name"] for o in json.loads(ran.stdout)["objects"] if o.get("penwidth") == "2"}
    assert thick == {str(row["id"]) for row in twice.rows if row["fired"] > 1} and len(thick) == 3


@graphviz_only
def test_grouped_by_module() -> None:
    report = graphed(Unused())
    nodes, edges = plain(dot(report, 1))
    owners: dict[str, int] = defaultdict(int)
    for row in report.rows:
        parts = row.fqn.split(".") if row.fqn else []
        owners[".".join((parts[:-1] if row["node"] == "AccumulateGrad" else parts)[:1])] += 1
    assert {label.splitlines()[0].split("\\n")[0] for label in nodes.values()} >= {"(model)", "first", "(loss)"}
    counted = {name: int(re.search(r"(\d+) nodes?", label)[1]) for name, label in nodes.items()}  # type: ignore[index]
    assert sorted(counted.values()) == sorted(owners.values())
    assert ("out", "relu") in edges and ("relu", "first") in edges and ("(loss)", "out") in edges
    assert all(a != b for a, b in edges)


@graphviz_only
def test_svg_is_a_picture_of_every_node() -> None:
    report = graphed(Hand())
    text = SvgReporter().render([report], View())
    root = ET.fromstring(text)
    assert root.tag.endswith("svg")
    words = " ".join("".join(element.itertext()) for element in root.iter() if element.tag.endswith("text"))
    for row in report.rows:
        assert row["node"] in words
    assert "first.weight" in words


def test_svg_without_graphviz_is_one_sentence(monkeypatch: pytest.MonkeyPatch, cli: Cli, net: Any) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="needs Graphviz"):
        SvgReporter().check(graphed(Hand()).columns)
    ran = cli("graph", "net.py:Net", "-i", "2x3x4x4", "--format", "svg")
    assert ran.code == 2 and ran.out == "" and len(ran.err.splitlines()) == 1 and "--format dot" in ran.err
    assert cli("graph", "net.py:Net", "-i", "2x3x4x4", "--format", "dot").out.startswith("digraph")

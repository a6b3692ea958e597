"""dot, svg and chrome, held against the formats' own rules by readers that know nothing of hookcli."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from support import Hand, Shared
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.errors import ModelError, UsageError
from hookcli.hooks.kinds import HookKind
from hookcli.probes.trace import TraceProbe
from hookcli.report import Report, Row
from hookcli.report.grouping import View
from hookcli.reporters.chrome import ChromeReporter
from hookcli.reporters.dot import DotReporter
from hookcli.reporters.svg import SvgReporter

Cli = Callable[..., Any]
X = torch.tensor([[1.0, 2.0]])
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


def plain(source: str) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Nodes (with their labels) and edges as Graphviz reads them."""
    ran = subprocess.run(["dot", "-Tjson0"], input=source, capture_output=True, text=True, check=True)
    data = json.loads(ran.stdout)
    names = {item["_gvid"]: item for item in data["objects"] if "nodes" not in item and "subgraphs" not in item}
    edges = {(names[e["tail"]]["name"], names[e["head"]]["name"]) for e in data.get("edges", [])}
    return {item["name"]: item["label"] for item in names.values()}, edges


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
    assert {(a, b) for a, b in re.findall(r"^\t(\d+) -> (\d+)$", source, re.MULTILINE)} == edges_of(report)
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
        SvgReporter()
    ran = cli("graph", "net.py:Net", "-i", "2x3x4x4", "--format", "svg")
    assert ran.code == 2 and ran.out == "" and len(ran.err.splitlines()) == 1 and "--format dot" in ran.err
    assert cli("graph", "net.py:Net", "-i", "2x3x4x4", "--format", "dot").out.startswith("digraph")


# Chrome's trace events.


def traced(model: nn.Module, inputs: Any = X) -> Report:
    probe = TraceProbe()
    try:
        (report,) = hookcli.capture(model, inputs, [probe], step=hookcli.Step(optimizer="sgd", state_dict=True))
    except ModelError as error:
        (report,) = error.reports
    return report


def check_trace_events(text: str) -> list[dict[str, Any]]:
    """The format's rules: strict JSON, known phases, times that never fall, spans that close in order on each track."""

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    document = json.loads(text, parse_constant=refuse)
    events: list[dict[str, Any]] = document["traceEvents"]
    open_spans: dict[Any, list[str]] = defaultdict(list)
    last: dict[Any, float] = defaultdict(lambda: -math.inf)
    for event in events:
        assert event["ph"] in "BEiM" and isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and event["args"]["name"]
            continue
        track = event["pid"], event["tid"]
        assert event["ts"] >= last[track] and math.isfinite(event["ts"])
        last[track] = event["ts"]
        if event["ph"] == "B":
            open_spans[track].append(event["name"])
        elif event["ph"] == "E":
            assert open_spans[track], f"{event['name']} ends and did not begin"
            assert open_spans[track].pop() == event["name"]
        else:
            assert event["s"] in "tpg"
    assert not any(open_spans.values()), f"never ended: {dict(open_spans)}"
    return events


class Block(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.block = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.block(self.first(x))
        return checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("model", [Hand(), Block(), Block(True), Block(False)], ids=repr)
def test_a_trace_opens(model: nn.Module) -> None:
    report = traced(model)
    events = check_trace_events(ChromeReporter().render([report], View()))
    shown = [event for event in events if event["ph"] != "M"]
    assert len(shown) == len(report.rows)
    assert {event["args"]["kind"] for event in shown} == {row["kind"] for row in report.rows}
    assert {event["pid"] for event in events} == {1}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [f"hookcli trace {report.model}"]


def test_spans_bear_the_names_of_modules_and_nodes() -> None:
    events = check_trace_events(ChromeReporter().render([traced(Hand())], View()))
    spans = [event["name"] for event in events if event["ph"] == "B"]
    assert spans[:4] == ["Hand", "first", "relu", "out"]
    assert "AddmmBackward0 first" in spans and "AccumulateGrad first.weight" in spans and "optimizer_step SGD" in spans


def test_layers_that_are_called_again_and_two_passes() -> None:
    probe = TraceProbe()
    (report,) = hookcli.capture(Shared(), torch.tensor([[1, 2]]), [probe], step=hookcli.Step(passes=2))
    check_trace_events(ChromeReporter().render([report], View()))


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_a_run_that_failed_has_its_spans_closed(when: str) -> None:
    def fail(*args: Any) -> None:
        raise ValueError

    model = Block()
    if when == "forward":
        model.block[1].register_forward_pre_hook(fail)
    else:
        model.first.weight.register_post_accumulate_grad_hook(fail)
    report = traced(model)
    assert report.meta["complete"] is False
    check_trace_events(ChromeReporter().render([report], View()))


def test_only_one_end_of_a_span_was_asked_for() -> None:
    for kind in ("forward", "forward_pre", "node_pre", "node"):
        (report,) = hookcli.capture(Hand(), X, [TraceProbe([HookKind(kind)])])
        events = check_trace_events(ChromeReporter().render([report], View()))
        assert len([e for e in events if e["ph"] != "M"]) == len(report.rows)


def test_a_global_trace_and_figures_that_json_has_not() -> None:
    rows = [Row({"kind": "forward", "fqn": "", "us": 1.0, "type": None, "name": None, "bytes": math.inf})]
    report = Report("trace", "x", (), rows)
    check_trace_events(ChromeReporter().render([report, report], View()))


def test_written_by_the_command(cli: Cli, net: Any) -> None:
    ran = cli("trace", "net.py:Net", "-i", "2x3x4x4", "--format", "chrome", "--output", "trace.json")
    assert ran.code == 0 and ran.out == "" and "wrote trace.json" in ran.err
    events = check_trace_events((net / "trace.json").read_text())
    assert {event["name"] for event in events} >= {"conv", "act", "fc", "optimizer_step SGD"}

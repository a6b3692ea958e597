"""Chrome's trace events: spans that open and close."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

import pytest
import torch
from reporters.graph_reports import Cli, X
from support import Hand, Shared
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.errors import ModelError
from hookcli.hooks.kinds import HookKind
from hookcli.reporters.chrome import ChromeReporter
from hookcli.table import Report, Row
from hookcli.table.grouping import View

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


@pytest.mark.sweep
def test_written_by_the_command(cli: Cli, net: Any) -> None:
    ran = cli("trace", "net.py:Net", "-i", "2x3x4x4", "--format", "chrome", "--output", "trace.json")
    assert ran.code == 0 and ran.out == "" and "wrote trace.json" in ran.err
    events = check_trace_events((net / "trace.json").read_text())
    assert {event["name"] for event in events} >= {"conv", "act", "fc", "optimizer_step SGD"}

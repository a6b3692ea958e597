"""The graph when only a part of the model was asked for, and when a program runs its own step."""

from __future__ import annotations

import pytest
import torch
from support import Hand, Shared

import hookcli
from hookcli.capabilities.graph.probe import GraphProbe
from hookcli.hooks.native import build
from hookcli.table import Report

X = torch.tensor([[1.0, 2.0], [-1.0, 0.25]])
NATIVE = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")),
]


def nodes(report: Report) -> list[tuple[str, str, int]]:
    return [(row["node"], row.fqn, row["fired"]) for row in report.rows]


@pytest.mark.parametrize("native", NATIVE)
def test_the_selection_keeps_the_names_that_the_whole_graph_gives(native: bool) -> None:
    model = Hand()
    whole = hookcli.capture(model, X, [GraphProbe(native)])[0]
    part = hookcli.capture(model, X, [GraphProbe(native)], select=lambda fqn, module: fqn == "relu")[0]
    assert nodes(part) == [node for node in nodes(whole) if node[1] == "relu"] == [("ReluBackward0", "relu", 1)]
    assert part.rows[0]["order"] == 0 and part.totals["nodes"] == 1
    assert part.rows[0].stats == next(row for row in whole.rows if row.fqn == "relu").stats


def test_a_parameter_is_selected_with_its_module_or_by_its_own_name() -> None:
    by_module = hookcli.capture(Hand(), X, ["graph"], select=lambda fqn, module: fqn == "out")[0]
    by_name = hookcli.capture(Hand(), X, ["graph"], select=lambda fqn, module: fqn == "out.weight")[0]
    assert {row.fqn for row in by_module.rows} == {"out", "out.weight"}
    assert nodes(by_name) == [("AccumulateGrad", "out.weight", 1)]


@pytest.mark.parametrize("native", NATIVE)
def test_a_parameter_whose_gradient_was_edited_says_so(native: bool) -> None:
    report = hookcli.capture(Hand(), X, [GraphProbe(native)], edits=["out.weight:grad=scale(2)", "out.*:grad=square"])[
        0
    ]
    assert {row.fqn: row["edited"] for row in report.rows if row.get("edited")} == {"out.weight": "scale(2), square"}


@pytest.mark.parametrize("native", NATIVE)
def test_a_step_of_ones_own_is_followed_from_the_models_outputs(native: bool) -> None:
    model = Hand()
    with hookcli.watch(model, [GraphProbe(native)]) as seen:
        model(X).pow(2).sum().backward()
    report = seen.reports()[0]
    model.zero_grad()
    within = {"MmBackward0", "TBackward0", "AccumulateGrad", "ReluBackward0", "AddmmBackward0"}
    assert {row["node"] for row in report.rows} == within and all(row["fired"] == 1 for row in report.rows)
    assert report.skipped[0].fqn == "(loss)"
    out = model(X)
    grad = torch.autograd.grad(out.pow(2).sum(), out)[0]
    first = report.rows[0]
    assert first["in_shape"] == [2, 1] and first.stats.l2 == pytest.approx(grad.norm().item())


@pytest.mark.parametrize("native", NATIVE)
def test_what_a_block_has_seen_so_far_grows(native: bool) -> None:
    model = Hand()
    with hookcli.watch(model, [GraphProbe(native)]) as seen:
        model(X).sum().backward()
        once = [row["fired"] for row in seen.reports()[0].rows]
        model(X).sum().backward()
        twice = seen.reports()[0]
    # Of the first layer Addmm, T and two accumulators, of relu one, of the last Mm, T and an accumulator.
    assert sum(once) == 4 + 1 + 3 and sum(row["fired"] for row in twice.rows) == 2 * sum(once)


def test_a_step_without_backward_or_without_grad_is_no_error() -> None:
    model, ids = Shared(), torch.tensor([1, 2])
    with hookcli.watch(model, ["graph", "trace"]) as seen:
        with torch.no_grad():
            model(ids)
        graph, trace = seen.reports()
        assert graph.rows == [] and [item.fqn for item in graph.skipped if item.fqn] == ["(loss)"]
        calls = ["", "embed", "mix", "mix", "mix", "head"]  # each with a row as it begins and one as it ends
        assert sorted(row.fqn for row in trace.rows) == sorted(2 * calls)
        assert {row["kind"] for row in trace.rows} == {"forward_pre", "forward"}
        model(ids)
        graph, trace = seen.reports()
    nodes = [row["node"] for row in graph.rows]
    assert nodes.count("TBackward0") == 4 and nodes.count("EmbeddingBackward0") == 1
    assert {row["fired"] for row in graph.rows} == {0}
    kinds = {"forward_pre", "forward", "saved_tensor_pack"}
    assert {row["kind"] for row in trace.rows} == kinds | (
        {"node_creation"} if hasattr(torch.autograd.graph, "node_creation_hook") else set()
    )

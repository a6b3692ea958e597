"""The nodes of a graph, against hooks by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from capabilities.graph.models import Conv, X, by_hand, out_stats, taken
from support import Hand, Shared, assert_stats, exact_only, float64_stats, untouched
from torch import Tensor, nn
from torch.autograd import graph

import hookcli
from hookcli.capabilities.graph.probe import GraphProbe
from hookcli.hooks.native import build as native_build
from hookcli.table import Report


def test_the_nodes_of_two_layers_by_hand(way: str) -> None:
    """Hand: first (Linear with bias), relu, out (Linear without); the loss is the sum.

    The engine runs what was made last first, and adds to `.grad` as soon as it can.
    """
    model = Hand()
    with untouched(model):
        report = taken(model, X)
    assert [(r["order"], r["node"], r.fqn) for r in report.rows] == [
        (0, "SumBackward0", "(loss)"), (1, "MmBackward0", "out"), (2, "TBackward0", "out"),
        (3, "AccumulateGrad", "out.weight"), (4, "ReluBackward0", "relu"), (5, "AddmmBackward0", "first"),
        (6, "AccumulateGrad", "first.bias"), (7, "TBackward0", "first"), (8, "AccumulateGrad", "first.weight"),
    ]  # fmt: skip
    rows = {(r["node"], r.fqn): r for r in report.rows}
    # relu(2x - 1) is [[1, 3], [5, 0]]; the gradient of the sum of 3 times it is 3, and 0 where it is cut off.
    relu = rows["ReluBackward0", "relu"]
    assert (relu["in_shape"], relu["out_shape"]) == ([2, 2], [2, 2])
    assert relu.stats is not None
    assert (relu.stats.mean, relu.stats.zeros, relu["out_zeros"], relu["out_mean"]) == (3, 0, 1, 9 / 4)
    bias = rows["AccumulateGrad", "first.bias"]
    assert bias.stats is not None and (bias.stats.min, bias.stats.max) == (3, 6) and bias["out_shape"] is None
    assert report.totals["nodes"] == report.totals["fired"] == 9 and "never fired" not in report.totals


def check_against_hooks(report: Report, expected: list[tuple[str, Any, Any]]) -> None:
    rows = [row for row in report.rows if row["fired"]]
    assert [row["node"] for row in rows] == [name for name, _, _ in expected]
    for row, (_, ins, outs) in zip(rows, expected, strict=True):
        for shapes, tensors in ((row["in_shape"], ins), (row["out_shape"], outs)):
            found = [list(t.shape) for t in tensors]
            assert shapes == (found[0] if len(found) == 1 else found or None)
        for stats, tensors in ((row.stats, ins), (out_stats(row), outs)):
            if tensors:
                assert_stats(stats, float64_stats(torch.cat([t.reshape(-1) for t in tensors])), rel=1e-4)
            elif tensors is outs:
                assert row["out_numel"] is None
        assert row["us"] > 0


def test_statistics_are_those_of_hooks_registered_by_hand() -> None:
    torch.manual_seed(3)
    model, x = Conv(), torch.randn(4, 2, 4, 4)
    check_against_hooks(taken(model, x), by_hand(model, (x,), torch.sum))


def test_a_layer_that_is_called_three_times(way: str) -> None:
    report = taken(Shared(), torch.tensor([[1, 2]]))
    calls = sorted(row["call"] for row in report.rows if row.fqn == "mix" and "mm" in row["node"].lower())
    assert calls == [0, 1, 2]
    tied = {row.fqn for row in report.rows if row["node"] == "AccumulateGrad"} - {"mix.weight", "mix.bias"}
    assert tied in ({"head.weight"}, {"embed.weight"})  # one node: either name is right


class Unused(Hand):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.relu(x).sum()
        self.out(x).exp()
        return super().forward(x)


@exact_only
def test_what_never_fires_comes_last_and_is_told() -> None:
    report = taken(Unused(), X)
    never = [row for row in report.rows if not row["fired"]]
    assert list(report.rows[-len(never) :]) == never
    assert {(row["node"], row.fqn) for row in never} >= {
        ("ExpBackward0", ""), ("MmBackward0", "out"), ("AccumulateGrad", "spare.weight"),
        ("AccumulateGrad", "spare.bias"),
    }  # fmt: skip
    assert all(row.stats is None and row["order"] is None and row["note"] == "never fired" for row in never)
    assert report.totals["never fired"] == len(never) == report.totals["nodes"] - report.totals["fired"]


def test_before_torch_2_15_it_is_said_what_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(graph, "node_creation_hook", raising=False)
    report = taken(Unused(), X)
    assert any("torch 2.14" in item.reason for item in report.skipped)
    never = {(row["node"], row.fqn) for row in report.rows if not row["fired"]}
    assert ("AccumulateGrad", "spare.weight") in never and ("ExpBackward0", "") not in never


def test_hooks_in_python_build_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C++ hooks are built only for --native."""
    monkeypatch.setattr(native_build, "load", lambda *given: pytest.fail("a library was built"))
    report = hookcli.capture(Hand(), X, [GraphProbe()])[0]
    assert report.totals["nodes"] == 9

"""Graphs of several passes, of checkpoints and of real models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from capabilities.graph.models import Conv, X, by_hand, out_stats, taken
from support import Hand, assert_stats, exact_only, float64_stats, gradients, swept, untouched
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.table import Report
from hookcli.table.grouping import group_rows


def test_two_passes_fire_a_parameters_node_twice(way: str) -> None:
    model = Hand()
    with untouched(model):
        report = taken(model, X, step=hookcli.Step(passes=2))
    twice = {row.fqn for row in report.rows if row["fired"] == 2}
    assert twice == {"first.weight", "first.bias", "out.weight"} and report.totals["more than once"] == 3
    assert all(row["note"] == "fired 2 times" for row in report.rows if row.fqn in twice)
    assert sum(row["node"] == "ReluBackward0" for row in report.rows) == 2
    assert {row["pass"] for row in report.rows if row["node"] == "ReluBackward0"} == {0, 1}


class Differentiates(nn.Module):
    """Runs a backward pass of its own, whose graph the loss then uses again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).square()
        (grad,) = torch.autograd.grad(y.sum(), self.layer.weight, retain_graph=True)
        return y * grad.sum()


@exact_only
def test_a_backward_pass_of_the_models_own_is_seen() -> None:
    report = taken(Differentiates(), X)
    fired = {(row["node"], row.fqn): row["fired"] for row in report.rows}
    assert fired == {
        ("SumBackward0", ""): 1, ("PowBackward0", ""): 2, ("AddmmBackward0", "layer"): 2, ("TBackward0", "layer"): 2,
        ("SumBackward0", "(loss)"): 1, ("MulBackward0", ""): 1,
        ("AccumulateGrad", "layer.bias"): 1, ("AccumulateGrad", "layer.weight"): 1,
    }  # fmt: skip


def test_differentiating_by_grad_leaves_the_parameters_nodes_out() -> None:
    """`autograd.grad` takes the gradients before they would be added to `.grad`."""
    model = Hand()
    with untouched(model):
        report = taken(model, X, step=hookcli.Step(call="grad"))
    never = {row.fqn for row in report.rows if not row["fired"]}
    assert never == {"first.weight", "first.bias", "out.weight"}
    assert report.meta["call"] == "torch.autograd.grad"


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda y: self.second(self.first(y).relu()), x * 1, use_reentrant=self.reentrant)


@exact_only
def test_nodes_of_a_recomputation_are_told_apart() -> None:
    report = taken(Checkpointed(reentrant=False), torch.ones(2, 3))
    again = [row for row in report.rows if row.get("note") == "never fired: recomputed"]
    assert {row.fqn for row in again} >= {"first", "second"} and all(not row["fired"] for row in again)
    fired = [row.fqn for row in report.rows if row["fired"]]
    assert fired.count("first.weight") == fired.count("second.bias") == 1


@exact_only
def test_a_reentrant_checkpoints_own_backward_is_seen() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    report = taken(Checkpointed(reentrant=True), x)
    fired = {(row["node"], row.fqn) for row in report.rows if row["fired"]}
    assert {
        ("CheckpointFunctionBackward", ""),
        ("AccumulateGrad", "first.weight"),
        ("AddmmBackward0", "second"),
    } <= fired


def test_edits_add_no_rows_and_break_no_edge(way: str) -> None:
    model = Hand()
    plain = taken(model, X)
    with untouched(model):
        edited = taken(model, X, edits=["relu:grad_output=scale(2)", "out:grad_input=scale(1)"])

    def shape(report: Report) -> list[tuple[str, str]]:
        names = {row["id"]: (row["node"], row.fqn) for row in report.rows}
        return sorted((str(names[r["id"]]), str(a and names[a])) for r in report.rows for a in r["next"])

    assert shape(edited) == shape(plain)
    assert edited.totals["nodes"] == edited.totals["fired"] == 9


def test_grouping_sums_times_and_merges_statistics_exactly() -> None:
    torch.manual_seed(1)
    model, x = Conv(), torch.randn(4, 2, 4, 4)
    report, expected = taken(model, x), by_hand(model, (x,), torch.sum)
    folded = {row.fqn: row for row in group_rows(report, 1).rows}
    assert set(folded) == {"", "(loss)", "conv", "norm", "fc"}
    for fqn, row in folded.items():
        members = [(r, e) for r, e in zip(report.rows, expected, strict=True) if r.fqn.split(".")[0] == fqn]
        assert row.get("merged", 1) == len(members)
        assert math.isclose(row["us"], sum(r["us"] for r, _ in members))
        assert row["fired"] == len(members)
        ins = torch.cat([t.reshape(-1) for _, (_, ins, _) in members for t in ins])
        outs = torch.cat([t.reshape(-1) for _, (_, _, outs) in members for t in outs])
        assert_stats(row.stats, float64_stats(ins), rel=1e-4)
        assert_stats(out_stats(row), float64_stats(outs), rel=1e-4)


MODELS = {"resnet18": (2, 3, 64, 64), "googlenet": (2, 3, 64, 64), "swin_t": (2, 3, 64, 64)}


@pytest.mark.parametrize("name", [*map(swept, ("resnet18", "googlenet", "swin_t"))])
def test_a_real_model_has_the_nodes_of_its_graph_and_the_same_gradients(name: str) -> None:
    from torchvision.models import get_model

    options = {"init_weights": False} if name == "googlenet" else {}
    model = get_model(name, weights=None, num_classes=10, **options)
    x = torch.randn(*MODELS[name])

    def value() -> Tensor:
        torch.manual_seed(5)
        return _summed(model(x))

    walked, waiting = set(), [value().grad_fn]
    while waiting:
        node = waiting.pop()
        if node not in walked:
            walked.add(node)
            waiting += [after for after, _ in node.next_functions if after is not None]
    count = len(walked)
    del walked, waiting, node
    before = {k: v.clone() for k, v in model.state_dict().items()}
    value().backward()
    plain = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model.load_state_dict(before)

    torch.manual_seed(5)
    with untouched(model), gradients(model) as seen:
        report = taken(model, x, loss=_summed)
    assert len([row for row in report.rows if row["fired"]]) == count
    assert seen.keys() == plain.keys() and all(torch.equal(seen[n], plain[n]) for n in plain)
    parameters = {row.fqn for row in report.rows if row["node"] == "AccumulateGrad" and row["fired"]}
    assert parameters == plain.keys()


def _summed(output: Any) -> Tensor:
    parts = output if isinstance(output, tuple) else (output,)
    return torch.stack([part.sum() for part in parts if part is not None]).sum()

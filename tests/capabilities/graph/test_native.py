"""`hookcli graph` by hooks in Python and by hooks in C++: the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import Hand, Shared, assert_stats, swept, untouched

import hookcli
from hookcli.capabilities.graph.probe import GraphProbe
from hookcli.cli import main
from hookcli.table import Row, TensorStats

EXACT = ("order", "node", "fqn", "call", "pass", "fired", "in_shape", "out_shape", "dtype", "next")
MODELS = {
    "resnet18": "2x3x64x64",
    "swin_t": "1x3x64x64",
    "googlenet": "2x3x64x64",
    "ssdlite320_mobilenet_v3_large": "",
    "raft_small": "1x3x128x128",
}


def outgoing(row: Row) -> TensorStats | None:
    return None if row["out_numel"] is None else TensorStats.of(row.values, "out_")


def assert_same_rows(one: list[Row], other: list[Row]) -> None:
    assert [[row[key] for key in EXACT] for row in one] == [[row[key] for key in EXACT] for row in other]
    for a, b in zip(one, other, strict=True):
        for x, y in ((a.stats, b.stats), (outgoing(a), outgoing(b))):
            assert (x is None) == (y is None)
            if y is not None:
                assert_stats(x, y)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("call", ["backward", "grad"])
@pytest.mark.parametrize(("make", "x"), [(Hand, torch.tensor([[1.0, 2.0]])), (Shared, torch.tensor([[1, 2]]))])
def test_both_paths_report_the_same_on_models_for_the_hand(
    make: Callable[[], Any], x: torch.Tensor, call: str, passes: int
) -> None:
    model = make()
    with untouched(model):
        python, native = (
            hookcli.capture(model, x, [GraphProbe(way)], step=hookcli.Step(call=call, passes=passes))[0]
            for way in (False, True)
        )
    hooks = ("capture hook (deprecated)", "tensor hook")
    assert_same_rows(list(python.rows), [row for row in native.rows if row["node"] not in hooks])
    assert native.totals["tensor hooks"] == len(list(model.parameters()))


def test_what_torch_autograd_grad_takes_is_shown_by_both_hooks() -> None:
    model, x = Hand(), torch.tensor([[1.0, 2.0]])
    report = hookcli.capture(model, x, [GraphProbe(True)], step=hookcli.Step(call="grad"))[0]
    grads = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(model(x).sum(), model.parameters()), strict=True)
    )
    shown = {(row["node"], row.fqn): row.stats for row in report.rows if "hook" in row["node"]}
    assert len(shown) == 2 * len(grads) == 2 * report.totals["captures"]
    for fqn, grad in grads.items():
        for node in ("capture hook (deprecated)", "tensor hook"):
            found = shown[node, fqn]
            assert found is not None and found.l2 == pytest.approx(grad.norm().item()) and found.numel == grad.numel()
    never = [row for row in report.rows if not row["fired"]]
    assert [row["node"] for row in never] == ["AccumulateGrad"] * len(grads)


class Idle(Hand):
    """With a layer that takes no part in the loss, whose bias is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = torch.nn.Linear(2, 2)
        self.idle.bias.requires_grad_(False)


@pytest.mark.parametrize("way", [False, True])
def test_a_parameter_that_is_not_used_has_a_node_that_never_fires_and_a_frozen_one_has_none(way: bool) -> None:
    report = hookcli.capture(Idle(), torch.tensor([[1.0, 2.0]]), [GraphProbe(way)])[0]
    rows = {row.fqn: row for row in report.rows if row["node"] == "AccumulateGrad"}
    assert rows.keys() == {"first.weight", "first.bias", "out.weight", "idle.weight"}
    idle = rows["idle.weight"]
    assert (idle["fired"], idle["order"], idle["in_shape"], idle.stats, idle["next"]) == (0, None, None, None, [])
    assert idle["note"] == ("no C++ hook: not in the graph of the loss" if way else "never fired")
    assert report.totals["never fired"] == 1 and report.rows[-1] is idle


@pytest.mark.parametrize("name", [*map(swept, MODELS)])
def test_both_paths_report_the_same_on_torchvisions(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    reports = []
    for way in ([], ["--native"]):
        assert main(["graph", name, *_inputs(name), "-q", "-f", "json", *way]) == 0, capfd.readouterr().err
        reports.append(hookcli.table.Report.from_dict(json.loads(capfd.readouterr().out)["reports"][0]))
    assert len(reports[0].rows) > 50
    assert_same_rows(*(list(report.rows) for report in reports))
    assert all(row["us"] > 0 for report in reports for row in report.rows if row["fired"])
    assert reports[0].totals["nodes"] == reports[1].totals["nodes"]


def _inputs(name: str) -> list[str]:
    """Its natural input where none is given."""
    times = 2 if name == "raft_small" else 1
    return ["-i", MODELS[name]] * times if MODELS[name] else []

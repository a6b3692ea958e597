"""Operators as places of a model: their names, rows, and source lines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli import capture, watch
from hookcli.hooks.torch_private.overrides import innermost_function_mode
from hookcli.table import Row

_LINE = Path(__file__).read_text().splitlines().index("        y = F.relu(self.norm(x)) + x") + 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(x)) + x
        y += 1
        y[:, 0] = 0
        y = torch.cat([y, x.contiguous()], 1).relu_()
        return y[:, :4] + y.shape[1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.blocks[0](x))
        values, _ = x.max(dim=-1)
        return values + values


NAMES = ["relu_1", "add_1", "add__1", "setitem_1", "cat_1", "relu__1", "getitem_1", "add_2"]


def rows(net: nn.Module, *inputs: Tensor, probe: str = "activations", **options: str) -> list[Row]:
    return [row for row in capture(net, inputs, probe, ops="functions", **options)[0].rows if "source" in row.values]


def test_operators_of_users_modules_are_rows_in_the_order_of_the_run_by_module_name_and_number() -> None:
    report = capture(net := Net().train(), x := torch.randn(2, 4), "activations", ops="functions")[0]
    found = [row for row in report.rows if "source" in row.values]
    blocks = [(f"blocks.{block}:{name}", call) for block, call in ((0, 0), (0, 1), (1, 0)) for name in NAMES]
    assert [(r.fqn, r["call"]) for r in found] == [*blocks, (":max_1", 0), (":max_1", 0), (":add_1", 0)]
    assert [row["index"] for row in report.rows] == sorted(row["index"] for row in report.rows)
    assert [row["type"] for row in found[:3]] == ["relu", "add", "add_"]
    assert found[0]["source"] == found[1]["source"] and found[0]["source"].endswith(f"test_operators.py:{_LINE}")
    assert report.meta["ops"] == "functions" and [c.name for c in report.columns][1:3] == ["type", "source"]
    y = F.relu(F.batch_norm(x, None, None, training=True, eps=net.blocks[0].norm.eps))  # type: ignore[union-attr]
    assert abs(found[0].stats.mean - y.double().mean().item()) < 1e-6
    assert found[0].stats.zeros == int((y == 0).sum())


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scripted = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        torch.add(x, 1, out=y)
        z = torch.func.vmap(lambda row: row * 2)(y)
        with torch.inference_mode():
            w = x.relu().relu_()
        y.size(), y.shape, x.is_leaf, y.dim(), float(y[0, 0])
        first, *_ = y.split(1)
        threads = ThreadPoolExecutor(1)
        threads.submit(torch.exp, x).result()
        threads.shutdown()
        torch.ops.aten.mul.Tensor(x, 2)
        return self.norm(self.scripted(w.clone())) + z + first


def test_unusual_functions_have_rows_or_a_reason() -> None:
    report = capture(Odd().eval(), torch.randn(2, 4), "activations", ops="functions")[0]
    shown = {row.fqn: row["shape"] for row in report.rows if "source" in row.values}
    assert list(shown) == [
        *(":add_1", ":relu_1", ":relu__1", ":getitem_1", ":split_1"),
        *(":mul_2", ":clone_1", ":forward_1", ":add_2", ":add_3"),
    ]
    reasons = {skipped.fqn: skipped.reason for skipped in report.skipped}
    assert reasons[":empty_like_1"].startswith("uninitialised memory: ")
    assert reasons[":mul_1"] == "can't be reduced (float32, inside torch.vmap)"
    assert reasons["scripted"].startswith("TorchScript takes no hooks")


def test_operators_are_selected_by_their_name_and_by_their_function() -> None:
    net, x = Net(), torch.randn(2, 4)
    kinds: dict[str, object] = {}

    def select(fqn: str, part: object) -> bool:
        kinds[fqn] = part
        return fqn.endswith(":relu_1")

    report = capture(net, x, "activations", ops="functions", select=select)[0]
    assert [(row.fqn, row["call"]) for row in report.rows] == [
        ("blocks.0:relu_1", 0),
        ("blocks.0:relu_1", 1),
        ("blocks.1:relu_1", 0),
    ]
    assert kinds["blocks.0:relu_1"] is F.relu and kinds["blocks"] is net.blocks


def exchanged() -> list[object]:
    """The functions of PyTorch that a session replaces."""
    overrides, script = torch.overrides.has_torch_function, torch.jit.ScriptFunction.__call__
    return [overrides, vars(F)["has_torch_function"], script, vars(torch.autograd.Function)["apply"]]


def test_operators_of_a_step_that_the_caller_runs() -> None:
    before = exchanged()
    net, x = Net(), torch.randn(2, 4)
    with watch(net, ["activations", "grads"], ops="functions") as watched:
        F.relu(net(x)).sum().backward()  # outside of the forward: no operator of the model
    activations, grads = watched.reports()
    assert [row.fqn for row in activations.rows if row.fqn.startswith(":")] == [":max_1", ":max_1", ":add_1"]
    assert {row["kind"] for row in grads.rows} == {"parameter", "output"}
    assert exchanged() == before and innermost_function_mode() is None

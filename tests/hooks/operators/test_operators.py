"""Operators as places of a model: their names, rows, and source lines."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli import capture
from hookcli.report import Row

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

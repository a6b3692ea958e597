"""Repeated blocks, lists of modules, lone children: rows as people count them."""

from __future__ import annotations

import math
from collections import OrderedDict

import pytest
import torch
from support import Shared
from torch import Tensor, nn

from hookcli.engine.capture import capture
from hookcli.report import Report, TensorStats
from hookcli.report.folding import folded
from hookcli.report.formatting import cell
from hookcli.report.grouping import View, as_asked, deepest, fitted, group_rows
from hookcli.reporters.table import TableReporter


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(4, width), nn.Linear(width, 4)])
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        for part in self.inner:
            x = self.act(part(x))
        return x


class Blocks(nn.Module):
    """Four equal blocks, a wider one, and two more equal ones, all in a ModuleList."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block(8 if n == 4 else 4) for n in range(7))

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x * scale


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    torch.manual_seed(0)
    inputs = {"x": torch.randn(2, 4), "scale": torch.ones(4)}
    found = capture(Blocks(), inputs, ["shapes", "activations", "grads"], loss="mean")
    return {report.probe: report for report in found}


SHORT = View(width=120, height=26)


@pytest.mark.parametrize("probe", ["shapes", "activations", "grads"])
def test_the_same_blocks_fold_in_every_probe(reports: dict[str, Report], probe: str) -> None:
    text = TableReporter().render([reports[probe]], SHORT)
    assert "blocks.0-3" in text and "(4x)" in text and "blocks.4" in text and "blocks.5-6" in text
    assert "repeated blocks are one, with the figures of all (--depth 1 shows each)" in text


def test_a_folded_block_has_the_costs_of_all_and_columns_add_up(reports: dict[str, Report]) -> None:
    shapes = reports["shapes"]
    rows = {row.fqn: row for row in fitted(shapes, 16).rows}
    block = rows["blocks.0-3"]
    assert (block["params"], block["macs"], block["merged"]) == (4 * 2 * 20, 4 * 2 * 2 * 16, 4)
    assert cell(block, "fqn") == "blocks.0-3 (4x)" and block["output_shape"] == [2, 4]
    top = [row for row in rows.values() if row["depth"] == 1]
    for key in ("params", "macs", "kept"):
        assert sum(row[key] for row in top) <= rows[""][key]
    assert sum(row["params"] for row in top) == shapes.totals["params"]
    assert sum(row["params_share"] for row in top) == pytest.approx(1)


def test_statistics_of_folded_blocks_are_merged_exactly(reports: dict[str, Report]) -> None:
    found = reports["activations"]
    row = next(row for row in group_rows(folded(found), 1).rows if row.fqn == "blocks.0-3")
    each = [row.stats for row in found.rows if row.fqn in {f"blocks.{n}" for n in range(4)} and row.stats]
    assert row.stats == TensorStats.merge(each) and len(each) == 4


def test_blocks_whose_norms_are_far_apart_say_so(reports: dict[str, Report]) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    for part in model:
        part.weight.data = 0.1 * torch.eye(2)
    rows = group_rows(folded(capture(model, torch.ones(1, 2), "activations")[0]), 1).rows
    assert rows[-1].fqn == "0-2" and rows[-1]["note"] == "L2 from 0.0014 (2) to 0.14 (0)"


def test_numbered_layers_with_others_between_them_are_no_repetition() -> None:
    parts = ("ln_1", "act", "ln_2")
    layers = [OrderedDict((name, nn.Tanh() if name == "act" else nn.Linear(2, 2)) for name in parts) for _ in range(3)]
    blocks = {f"layer_{n}": nn.Sequential(layer) for n, layer in enumerate(layers)}
    (report,) = capture(nn.Sequential(OrderedDict(blocks)), torch.ones(1, 2), "shapes")
    names = [row.fqn for row in group_rows(folded(report), 2).rows]
    assert names == ["", "layer_0-2", *(f"layer_0-2.{name}" for name in parts)]


def test_lists_and_a_lone_child_are_no_level(reports: dict[str, Report]) -> None:
    shapes = reports["shapes"]
    assert deepest(shapes) == 2 and {row["depth"] for row in shapes.rows if row.fqn == "blocks.4"} == {1}
    assert [row.fqn for row in group_rows(shapes, 1).rows] == ["", "stem", *(f"blocks.{n}" for n in range(7))]
    inner = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    (wrapped,) = capture(nn.Sequential(inner), torch.ones(1, 2), "shapes")
    assert [row.fqn for row in group_rows(wrapped, 1).rows] == ["", "0", "0.0", "0.1"]
    assert wrapped.meta["containers"] == ["0"]
    (flat,) = capture(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2), "shapes")
    assert "containers" not in flat.meta


def test_a_depth_beyond_the_deepest_is_all(reports: dict[str, Report]) -> None:
    for report in reports.values():
        assert as_asked(report, 99) == math.inf == as_asked(report, math.inf) and as_asked(report, 1) == 1


def test_a_module_called_with_several_shapes_shows_them() -> None:
    class Pooled(nn.Module):
        def __init__(self, times: int) -> None:
            super().__init__()
            self.pool, self.times = nn.MaxPool1d(2), times

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(self.times):
                x = self.pool(x)
            return x

    texts = {}
    for times in (3, 4):
        (report,) = capture(Pooled(times), torch.ones(1, 2, 32), "shapes")
        texts[times] = cell(group_rows(report, 1).rows[1], "output_shape")
    assert texts == {3: "1x2x16 | 1x2x8 | 1x2x4", 4: "1x2x16 … 1x2x2"}
    (same,) = capture(Shared(), torch.zeros(2, 3, dtype=torch.int64), "shapes")
    assert all(row["output_shape"] for row in group_rows(same, 1).rows)


def test_keyword_arguments_have_their_names(reports: dict[str, Report]) -> None:
    root = reports["shapes"].rows[0]
    assert cell(root, "input_shape") == "x=2x4, scale=4" and root["input_names"] == ["x", "scale"]
    assert root["input_shape"] == [[2, 4], [4]] and "input_names" not in reports["shapes"].rows[1].values

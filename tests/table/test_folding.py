"""Repeated blocks, lists of modules, lone children: rows as people count them."""

from __future__ import annotations

import math
import re
import sys
from collections import OrderedDict
from typing import Any

import pytest
import torch
from support import Shared, each_once
from torch import Tensor, nn

from hookcli.diff.rows import diff
from hookcli.engine.capture import capture
from hookcli.reporters.table import TableReporter
from hookcli.table import Column, Report, Row, TensorStats, columns_named
from hookcli.table.folding import folded
from hookcli.table.formatting import cell
from hookcli.table.grouping import View, as_asked, deepest, group_rows
from hookcli.table.screen import fitted


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
    assert "rows" in text and "repeated blocks are one" in text and "(--depth" in text


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


class Halved(nn.Module):
    """Blocks in blocks; each part of the inner ones is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleList(nn.Linear(4, 4) for _ in range(2)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for part in [part for block in self.blocks for part in block]:
            x = part(part(x))
        return x


@pytest.mark.parametrize(("probe", "depth"), each_once(["shapes", "grads", "graph"], [1, 2, 3, math.inf]))
def test_a_multiplier_is_the_number_of_modules_or_parameters_of_that_name(depth: float, probe: str) -> None:
    (report,) = capture(Halved(), torch.randn(2, 4), probe, loss="mean")
    require_true_multipliers(report, depth)


def require_true_multipliers(report: Report, depth: float) -> None:
    """Fails unless each multiplier of a report of `Halved` is the number of modules or parameters of that name."""
    net = Halved()
    known = {*dict(net.named_modules()), *dict(net.named_parameters())}
    told = 0
    for row in group_rows(folded(report), depth).rows:
        text = cell(row, "fqn").removeprefix(row.fqn)
        spans = re.sub(r"(\d+)-(\d+)", lambda span: f"[{span[1]}-{span[2]}]", re.escape(row.fqn).replace(r"\-", "-"))
        number = sum(bool(re.fullmatch(spans, name)) for name in known)
        if match := re.search(r"\((\d+)x\)", text):
            told += 1
            assert int(match[1]) == number > 1, (row.fqn, text)
        if match := re.search(r" x(\d+)", text):
            assert int(match[1]) == 2 and report.probe == "shapes", (row.fqn, text)  # calls
    assert told or math.isinf(depth)


class Scales(nn.ModuleDict):
    def __init__(self) -> None:
        super().__init__({name: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for name in ("16-32", "4-3")})

    def forward(self, x: Tensor) -> Tensor:
        return self["4-3"](self["16-32"](x))


def test_the_names_of_a_long_chain_are_cut_few_times() -> None:
    """A chain of 300: work that grew with the cube of its length would look at tens of millions of names."""
    names = [".".join(["0"] * depth) for depth in range(1, 300)]
    calls = 0

    def count(frame: Any, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = folded(Report("shapes", "m", [], [Row({"fqn": name}) for name in names]))
    finally:
        sys.setprofile(None)
    assert [row.fqn for row in found.rows] == names and calls < 12 * len(names) ** 2


def test_names_that_look_like_ranges_are_no_multipliers() -> None:
    report = folded(capture(Scales(), torch.ones(1, 2), "grads", loss="mean")[0])
    names = [cell(row, "fqn") for row in group_rows(report, 2).rows]
    assert names == ["4-3.0-1 (2x)", "16-32.0-1 (2x)"]


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
    assert rows[-1].fqn == "0-2" and rows[-1]["note"] == "L2 from 0.0014 (layer 2) to 0.14 (layer 0)"


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


def listing(*rows: Row, **meta: Any) -> Report:
    return Report("made", "net", (Column("fqn", "Layer"),), rows, meta)


HEALTHY = TensorStats(4, 1.0, 1.0, 0.0, 2.0, 3.0)


@pytest.mark.parametrize(
    "odd",
    [
        {"beyond": True, "times": 3.0},
        {"change": "Linear → ReLU"},
        {"edited": "zero"},
        {"note": "weight tied to embed.weight"},
        {"handed_on": True},
        {"trainable": 0},
        {"grad_nan": 2},
        TensorStats(4, 1.0, 1.0, 0.0, 2.0, 3.0, nan=1),
        TensorStats(4, 1.0, 1.0, 0.0, 2.0, 3.0, inf=1),
        TensorStats.of_zeros(4),
    ],
)
def test_one_different_block_of_twelve_keeps_its_rows(odd: dict[str, Any] | TensorStats) -> None:
    values, stats = ({}, odd) if isinstance(odd, TensorStats) else (odd, HEALTHY)

    def row(n: int, part: str) -> Row:
        own = {"fqn": f"blocks.{n}.{part}", "type": "Linear"}
        return Row(own | values, stats) if (n, part) == (7, "b") else Row(own, HEALTHY)

    report = listing(*(row(n, part) for n in range(12) for part in "ab"))
    found = {row.fqn: row for row in group_rows(folded(report), 3).rows}
    assert list(found) == [f"blocks.{n}.{part}" for n in ("0-6", "7", "8-11") for part in "ab"]
    assert found["blocks.7.b"].stats == stats and found["blocks.7.b"].values.items() >= values.items()


def test_blocks_with_the_same_mark_fold_but_none_beyond_tolerance() -> None:
    same = listing(*(Row({"fqn": f"blocks.{n}"}, TensorStats.of_zeros(4)) for n in range(3)))
    assert {row.fqn for row in folded(same).rows} == {"blocks.0-2"}
    beyond = listing(*(Row({"fqn": f"blocks.{n}", "beyond": True, "times": 2.0}) for n in range(3)))
    assert folded(beyond) is beyond


def test_a_comparison_shows_the_block_that_changed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(12)))
    x = torch.randn(2, 4)
    (before,) = capture(model, x, "activations")
    model[7][0].weight.data *= 2
    (after,) = capture(model, x, "activations")
    rows = {row.fqn: row for row in fitted(diff(before, after), 20).rows}
    assert set(rows) == {"", *(f"{n}{part}" for n in ("0-6", *range(7, 12)) for part in ("", ".0", ".1"))}
    assert cell(rows["7.0"], "mark") == "beyond" and not rows["0-6.0"].get("beyond") and rows["0-6"]["folded"] == 7


def test_a_group_of_folded_and_other_rows_counts_its_parameters() -> None:
    def parameter(fqn: str, *shape: int) -> Row:
        return Row({"fqn": f"trunk.{fqn}.weight", "kind": "parameter", "shape": [*shape]}, HEALTHY)

    head = [parameter(f"head.{n}", 4, 4 if n else 8) for n in (2, 1, 0)]
    blocks = [parameter(f"blocks.{n}", 4, 4) for n in range(48)]

    def names(depth: int, *rows: Row) -> list[str]:
        report = folded(listing(*rows, containers=["trunk.blocks"]))
        return [cell(row, "fqn") for row in group_rows(report, depth).rows]

    assert names(2, *head, *blocks) == ["trunk.head (3)", "trunk.blocks.0-47 (48x)"]
    assert names(1, *head, *blocks) == ["trunk (51)"] and names(1, *blocks) == ["trunk (48)"]


class Encoder(nn.Module):
    """Two attentions in a module whose forward is never called."""

    class Attention(nn.Module):
        def forward(self, *, query: Tensor, key: Tensor) -> Tensor:
            return query + key.mean()

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = self.Attention(), self.Attention()

    def run(self, x: Tensor) -> Tensor:
        return self.b(query=self.a(query=x, key=x)[:, :1], key=x)

    forward = run


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.head = Encoder(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.enc.run(x))


def test_a_group_of_calls_with_keyword_arguments_of_several_shapes() -> None:
    (report,) = capture(Net(), torch.ones(1, 2, 4), "shapes")
    rows = {row.fqn: row for row in group_rows(report, 1).rows}
    assert cell(rows["enc"], "input_shape") == "-" and "input_names" not in rows["enc"].values
    assert "query=1x1x4, key=1x2x4" in TableReporter().render([report], View(depth=2, width=160))
    assert cell(rows["enc"], "fqn") == "enc"  # two modules, called once each


def test_evenly_spaced_layers_fold_where_no_row_stands_between() -> None:
    places = {n: [4, 4] for n in (0, 2, 4, 6)} | {8: [5, 4], 9: [4, 4], 12: [4, 4], 15: [4, 4], 17: [4, 4]}
    rows = [Row({"fqn": f"net.{n}.weight", "kind": "parameter", "shape": shape}) for n, shape in places.items()]
    found = fold_names(rows)
    assert found == {"net.0-6.weight": 4, "net.8.weight": 1, "net.9-15.weight": 3, "net.17.weight": 1}
    between = [Row({"fqn": f"net.{n}", "type": "Tanh" if n % 2 else "Linear"}) for n in range(6)]
    assert list(fold_names(between)) == [f"net.{n}" for n in range(6)]


def fold_names(rows: list[Row]) -> dict[str, int]:
    """The names of the folded rows, and how many blocks each stands for."""
    report = folded(Report("grads", "Net", columns_named("fqn", "kind", "type", "shape"), rows))
    return {row.fqn: report.tree[row.fqn].blocks for row in report.rows}

"""Operators are places below the module in which they run: their names, depths, groups and folded blocks."""

from __future__ import annotations

import pytest

from hookcli.reporters.table import TableReporter
from hookcli.table import STATS_COLUMNS, Column, Report, Row, TensorStats
from hookcli.table.folding import folded
from hookcli.table.formatting import source
from hookcli.table.grouping import View, group_rows
from hookcli.table.names import around, is_within, operator_owner, owner_of, relative
from hookcli.table.screen import fitted
from hookcli.table.tree import Tree


@pytest.mark.parametrize(
    ("fqn", "owner", "operator"),
    [
        ("layer1.0:add_1", "layer1.0", True),
        (":relu__12", "", True),
        ("layer1.0.conv1", "layer1.0", False),
        ("conv", "", False),
        ("net:1.conv", "net:1", False),  # colons in the names of modules
        ("net:1", "", False),
        ("net:1:mul_2", "net:1", True),
        ("a:b_1.weight", "a:b_1", False),
    ],
)
def test_the_module_around_a_place(fqn: str, owner: str, operator: bool) -> None:
    assert owner_of(fqn) == owner and (operator_owner(fqn) == owner if operator else operator_owner(fqn) is None)
    assert is_within(fqn, owner) and not is_within(owner, fqn) and not is_within(fqn, f"{owner}x")
    assert owner + (":" if operator else "." if owner else "") + relative(fqn, owner).removeprefix(":") == fqn


def test_the_places_around_an_operator() -> None:
    tree = Tree(["blocks"])
    assert [*around("a.b:add_1")] == ["a.b", "a", ""] == [node.fqn for node in tree["a.b:add_1"].around()]
    assert is_within("a.b:add_1", "a") and not is_within("a.b:add_1", "a.b.c") and not is_within("ab:add_1", "a")
    assert [tree[fqn].level for fqn in (":add_1", "blocks.0", "blocks.0:add_1")] == [1, 1, 2]
    inner = tree["blocks.0:add_1"]
    assert inner.at(1) is tree["blocks.0"] and inner.shown(1, operators=True) is inner and inner.at(9) is inner
    assert tree["blocks.0.fc:add_1"].shown(1, operators=True) is tree["blocks.0"]
    assert [node.fqn for node in tree] == ["", "a", "a.b", "a.b:add_1", ":add_1", *_IN_BLOCKS]
    assert [part.name for part in tree["blocks.0"].parts] == [":add_1", "fc"]


_IN_BLOCKS = ("blocks", "blocks.0", "blocks.0:add_1", "blocks.0.fc", "blocks.0.fc:add_1")


def _row(fqn: str, kind: str, index: int, inf: int = 0) -> Row:
    values = {"fqn": fqn, "type": kind, "call": 0, "index": index, "path": "", "shape": [2], "dtype": "float32"}
    return Row(values, TensorStats(2, 1.0, 1.0, 0.0, 2.0, 2.0, inf=inf))


def _net(blocks: int, *, alike: bool = True) -> Report:
    """A model of blocks, each with two layers and two operators, and an operator of its own."""
    names = [("", "Net")]
    for n in range(blocks):
        inside = ((".fc1", "Linear"), (":relu_1", "relu"), (".fc2", "Linear"), (":add_1", "add"))
        names += [
            (f"blocks.{n}", "Block" if alike else f"Block{n}"),
            *((f"blocks.{n}{name}", kind) for name, kind in inside),
        ]
    rows = [_row(fqn, kind, index) for index, (fqn, kind) in enumerate([*names, (":mean_1", "mean")])]
    columns = (Column("fqn", "Layer"), Column("type", "Type"), Column("call", "Call"), *STATS_COLUMNS)
    return Report("activations", "net", columns, rows, {"containers": ["blocks"], "ops": "functions"})


def test_operators_group_into_their_module() -> None:
    net = _net(2)
    assert [row.fqn for row in group_rows(net, 1).rows] == ["", "blocks.0", "blocks.1", ":mean_1"]
    bad = Report(net.probe, net.model, net.columns, [_row("a", "Block", 0), _row("a:exp_1", "exp", 1, inf=1)])
    assert group_rows(bad, 1).rows[0]["note"] == "▲ :exp_1 1 Inf"


def test_a_screen_shows_the_operators_of_what_it_shows() -> None:
    fits = fitted(_net(2, alike=False), 8)  # 12 rows: the operators of blocks come before the modules inside
    operators = ["blocks.0:relu_1", "blocks.0:add_1", "blocks.1:relu_1", "blocks.1:add_1", ":mean_1"]
    assert [row.fqn for row in fits.rows if ":" in row.fqn] == operators
    assert [row.fqn for row in fits.rows if "fc" in row.fqn] == [] and len(fits.rows) == 8
    assert [row.fqn for row in fitted(_net(2, alike=False), 5).rows] == ["", "blocks.0", "blocks.1", ":mean_1"]


def test_operators_of_repeated_blocks_fold() -> None:
    rows = folded(_net(12)).rows
    assert {row.fqn for row in rows if "fc" not in row.fqn} == {
        *("", "blocks.0-11", "blocks.0-11:relu_1", "blocks.0-11:add_1", ":mean_1")
    }
    row = next(row for row in fitted(_net(12), 10).rows if row.fqn == "blocks.0-11:add_1")
    assert (row["folded"], row.stats and row.stats.numel) == (12, 24)


def test_operators_are_branches_of_the_tree() -> None:
    text = TableReporter().render([_net(1)], View(depth=9, width=120, height=40))
    lines = [line for line in text.splitlines() if "_1" in line]
    assert [line[: line.index("_1") + 2] for line in lines] == ["  :relu_1", "  :add_1", ":mean_1"]


def test_a_source_line_keeps_its_end() -> None:
    assert source("net.py:12") == "net.py:12" and source(None) == ""
    assert source("torchvision/models/detection/resnet.py:92") == "…/detection/resnet.py:92"
    assert source("a_very_long_name_of_a_file_in_a_folder.py:1234") == "…_a_file_in_a_folder.py:1234"

"""hookcli graph: formats, columns and mistakes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from commands.graph_nets import OWN, Cli, global_hooks, read
from support import require_clear_error


@pytest.fixture
def own(net: Path) -> Path:
    (net / "own.py").write_text(OWN)
    return net


def test_graph_in_every_format_of_people(cli: Cli, own: Path) -> None:
    ran = cli("graph", "own.py:Plain", "-i", "3x4")
    assert ran.code == 0 and ran.err == ""
    assert "AddmmBackward0" in ran.out and "first.weight" in ran.out and "10 nodes · 10 fired · backward" in ran.out
    assert "ReluBackward0" in cli("graph", "own.py:Plain", "-i", "3x4", "--format", "markdown").out
    rows = list(csv.DictReader(cli("graph", "own.py:Plain", "-i", "3x4", "--format", "csv").out.splitlines()))
    assert list(rows[0])[:4] == ["order", "node", "fqn", "call"] and {"out_l2", "us"} <= rows[0].keys()
    ids = {row["node"] + row["fqn"]: row["id"] for row in rows}
    relu, bias, turned = (ids[key] for key in ("ReluBackward0", "AccumulateGradsecond.bias", "TBackward0second"))
    assert {row["next"] for row in rows if row["fqn"] == "second" and "Addmm" in row["node"]} == {
        f"{bias} {relu} {turned}"
    }
    assert [row["next"].split()[1] for row in rows if row["fqn"] == "first" and "Addmm" in row["node"]] == ["-"]


def test_graph_by_grad(cli: Cli, own: Path) -> None:
    report = read(cli("graph", "own.py:Plain", "-i", "3x4", "--call", "grad", "--format", "json"))
    assert {r["fqn"] for r in report["rows"] if r["node"] == "AccumulateGrad" and not r["fired"]} == {
        "first.weight", "first.bias", "second.weight", "second.bias",
    }  # fmt: skip
    assert report["meta"]["call"] == "torch.autograd.grad" and report["totals"]["never fired"] == 4


def test_graph_shows_the_names_of_nodes_on_a_narrow_screen(own: Path) -> None:
    """A column of the summary of `trace` is called as this one is."""
    from hookcli.capabilities.graph.probe import GraphProbe
    from hookcli.reporters import table_columns
    from hookcli.table import Report, Row
    from hookcli.table.grouping import View

    columns = GraphProbe.columns
    row = Row({column.name: 1 for column in columns} | {"node": "AddmmBackward0", "fqn": "first"})
    shown = table_columns.fitted(Report("graph", "", columns, ()), columns, {column.name: 8 for column in columns}, 40)
    assert [column.name for column in shown][:2] == ["node", "fqn"]
    assert table_columns.visible(Report("graph", "x", columns, (row,)), View())


MISTAKES: dict[tuple[str, ...], str] = {
    ("graph", "own.py:Plain", "-i", "3x4", "--call", "grads"): "unknown --call 'grads'; did you mean grad?",
    ("graph", "own.py:Frozen", "-i", "3x4"): "no gradients: nothing in the output requires grad",
    ("graph", "own.py:Frees", "-i", "3x4"): "backward failed: the graph was freed by an earlier backward",
    ("graph", "own.py:HookFails", "-i", "3x4"): "second (Linear) failed on input 3x4: ValueError: a hook of theirs",
    ("graph", "own.py:HookFails", "-i", "3x4", "--arg", "when=backward"): "backward failed: ValueError: a hook of",
    ("graph", "own.py:Plain", "-i", "3x4", "--format", "chrome"): "only for `hookcli trace`",
    ("graph", "quantized_resnet18", "--arg", "quantize=true", "-i", "1x3x64x64"): "no gradients",
}


@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_mistakes_get_a_clear_line(cli: Cli, own: Path, argv: tuple[str, ...]) -> None:
    before = global_hooks()
    require_clear_error(cli(*argv), MISTAKES[argv])
    assert global_hooks() == before

"""The forward flow as DOT, SVG and PNG: read again, every call and every edge."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from reporters.graph_reports import Cli, plain
from torch import Tensor, nn

from hookcli import capture
from hookcli.reporters.dot import DotReporter
from hookcli.table import Report
from hookcli.table.grouping import View

graphviz_only = pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Any:
        return self.a(x) + x


class Net(nn.Module):
    """Two blocks, the first of which runs again; with a name that Graphviz must be kept from reading as its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()
        self.add_module('quo"te\\n', nn.Linear(2, 3))

    def forward(self, x: Tensor) -> Any:
        x.sum()  # leads nowhere
        return getattr(self, 'quo"te\\n')(self.one(self.two(self.one(x))))


@pytest.fixture(scope="module")
def report() -> Report:
    return capture(Net(), torch.randn(5, 2), ["flow"], name="net.py:Net")[0]


def edges(report: Report, depth: float | None) -> set[tuple[str, str]]:
    labels, found = plain(DotReporter().render([report], View(depth=depth)))
    return {(labels[a].splitlines()[0], labels[b].splitlines()[0]) for a, b in found}


@graphviz_only
def test_every_call_and_every_edge(report: Report) -> None:
    labels, found = plain(DotReporter().render([report], View(depth=math.inf)))
    calls = [row for row in report.rows if row["type"] != "sum"]
    ends = {(f"call {i}", f"call {row['id']}") for row in calls for i in row["inputs"]}
    assert found == ends and len(labels) == len(calls)
    assert sorted(labels.values())[0].splitlines() == ["a", "Linear", "5x2"]


@graphviz_only
@pytest.mark.parametrize("depth", [1, None])
def test_depth_folds_modules_and_a_call_made_later_is_another_box(report: Report, depth: int | None) -> None:
    if depth is None:  # all fit
        assert edges(report, None) == edges(report, math.inf)
        return
    labels, found = plain(DotReporter().render([report], View(depth=1)))
    names = [label.splitlines()[0] for label in labels.values()]
    assert names == ["input", "one", "two", "one", 'quo"te\\\\n', "output"]  # as Graphviz writes a backslash
    assert len(found) == 5
    folded = next(label for label in labels.values() if label.startswith("two"))
    assert folded.splitlines()[1] == "2 calls"


@pytest.mark.sweep
@graphviz_only
def test_the_command_draws(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, first in (("x.svg", b"<?xml"), ("x.png", b"\x89PNG"), ("x.dot", b"digraph")):
        ran = cli("flow", "squeezenet1_1", "--depth", "1", "-o", str(tmp_path / name))
        assert ran.code == 0 and (tmp_path / name).read_bytes().startswith(first), ran.err
    table = cli("flow", "squeezenet1_1").out.splitlines()
    assert table[1].split() == ["Id", "Kind", "Layer", "Type", "Number", "From", "Input", "Output"]
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = cli("flow", "squeezenet1_1", "-o", str(tmp_path / "y.png"))
    assert ran.code == 2 and "Graphviz" in ran.err

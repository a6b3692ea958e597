"""Batches of several sizes under a compiled model: the rows are eager mode's, by one compilation more than without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support import swept
from torch._dynamo.utils import counters

from hookcli.cli import main

pytestmark = pytest.mark.xdist_group("torch.compile")  # whose imports and precompiled headers one worker needs
SOURCE = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

def batches():
    torch.manual_seed(3)
    return [torch.randn(size, 4) for size in (8, 5, 7)]
"""


def rows(file: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[dict[tuple[Any, ...], Any], int]:
    """The rows of all batches by their place, and how many graphs were compiled."""
    torch._dynamo.reset()
    counters.clear()
    command = [*argv[:1], f"{file}:net", "--data", f"{file}:batches", "--batches", "all", "--format", "json", *argv[1:]]
    assert main(command) == 0
    [report] = json.loads(capsys.readouterr().out)["reports"]
    assert report["meta"]["batches"] == 3
    keys = ("fqn", "kind", "call", "path", "dtype")
    found = {(*(row.get(key) for key in keys), *row["shape"]): row for row in report["rows"]}
    assert len(found) == len(report["rows"])
    return found, counters["stats"]["unique_graphs"]


FOR_ANY_SIZE = """
def for_any_size(graph, inputs):
    for node in graph.graph.nodes:  # as inductor's programs for any size may, this one rounds otherwise
        if any(isinstance(x, torch.SymInt) for x in inputs) and node.target is torch.nn.functional.relu:
            node.target = lambda x, **_: x.relu() * (1 + 2**-20)
    graph.recompile()
    return graph

def rounding():
    return torch.compile(net(), backend=for_any_size)
"""


def test_a_program_for_any_size_is_compared_with_no_program_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first batch runs with and without looks in programs for its size, whatever sizes come later."""
    (file := tmp_path / "net.py").write_text(SOURCE + FOR_ANY_SIZE)
    torch._dynamo.reset()
    assert main(["activations", f"{file}:rounding", "--data", f"{file}:batches", "--batches", "all", "-f", "json"]) == 0
    [report] = json.loads(capsys.readouterr().out)["reports"]
    assert report["meta"]["batches"] == 3
    said = "by for_any_size: outputs bit-identical to the compiled model's without looks"
    assert report["meta"]["compiled"] == said


@pytest.mark.parametrize(
    "argv", [*map(swept, [("grads", "--of", "outputs"), ("activations",), ("grads",)])], ids=" ".join
)
def test_rows_of_several_sizes_are_those_of_eager_mode(
    argv: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "net.py").write_text(SOURCE)
    eager, none = rows(file, capsys, *argv)
    seen, graphs = rows(file, capsys, *argv, "--compile", "aot_eager")
    assert none == 0 and graphs == 3  # the first size, then any, and the program without looks
    assert seen.keys() == eager.keys() and eager
    for place, row in eager.items():
        for figure in ("mean", "std", "min", "max", "l2", "zeros"):
            assert seen[place][figure] == pytest.approx(row[figure], rel=1e-5, abs=1e-6), (place, figure)

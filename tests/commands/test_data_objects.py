"""Batches that are objects: a dataclass, a graph, one with slots; a model takes them whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CODE = """
import torch
from dataclasses import dataclass
from torch import nn

@dataclass
class Batch:
    x: torch.Tensor
    lengths: torch.Tensor

class Graph:
    def __init__(self, n=3):
        self.x, self.edge_index = torch.ones(n, 4), torch.zeros(2, 5, dtype=torch.int64)

class Slots:
    __slots__ = ("x",)
    def __init__(self):
        self.x = torch.ones(3, 4)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        nn.init.constant_(self.fc.weight, 0.5)
        nn.init.zeros_(self.fc.bias)
    def forward(self, batch):
        return self.fc(batch.x)

one, graph = Batch(torch.ones(3, 4), torch.ones(3)), Graph()
batches = lambda: [Batch(torch.ones(3, 4), torch.ones(3)), Batch(torch.ones(5, 4), torch.ones(5))]
graphs = lambda: [Graph(), Graph(5)]
slots = lambda: iter([Slots()])
labelled = lambda: [(Graph(), torch.zeros(3, dtype=torch.int64))]
without = lambda: [object()]
"""


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data_objects.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "described"),
    [
        ("one", "3x4, 3"),
        ("graph", "Graph"),
        ("batches", "3x4, 3"),
        ("graphs", "Graph"),
        ("slots", "Slots"),
        ("labelled", "Graph"),
    ],
)
def test_the_model_gets_them_whole(cli: Callable[..., Any], name: str, described: str) -> None:
    words = ("--data", f"data_objects.py:{name}", "-f", "json", "-q")
    ran = cli("activations", "data_objects.py:Net", *words)
    [report] = json.loads(ran.out)["reports"]
    row = next(row for row in report["rows"] if row["fqn"] == "fc")
    assert (row["mean"], row["shape"], report["meta"]["input"]) == (2.0, [3, 2], described)


def test_further_batches_and_targets(cli: Callable[..., Any]) -> None:
    ran = cli(
        "activations", "data_objects.py:Net", "--data", "data_objects.py:graphs", "--batches", "all", "-f", "json"
    )
    assert next(row["numel"] for row in json.loads(ran.out)["reports"][0]["rows"] if row["fqn"] == "fc") == 16
    words = ("--data", "data_objects.py:labelled", "--loss", "cross-entropy", "-f", "json")
    ran = cli("grads", "data_objects.py:Net", *words)
    assert abs(json.loads(ran.out)["reports"][0]["meta"]["loss_value"] - 0.6931471805599453) < 1e-6


def test_an_object_without_tensors(cli: Callable[..., Any]) -> None:
    ran = cli("activations", "data_objects.py:Net", "--data", "data_objects.py:without")
    assert ran.code == 2 and "is object; give a tensor, a tuple of inputs and a target, or a dict" in ran.err

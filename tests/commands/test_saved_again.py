"""JSON that a command has saved can be shown, put on a page and saved again, as the command promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import swept

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.norm, self.head = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        h = torch.relu(self.emb(x))
        return self.head(self.norm(h + self.attend(h, h, h)[0])).softmax(-1)
"""


@pytest.mark.parametrize(
    "words",
    [
        "shapes --ops",
        "graph --depth 1",
        "report --ops",
        *map(swept, ("shapes --ops --depth 1", "activations --ops", "grads --of outputs --ops --depth 2")),
        *map(swept, ("flow --depth 1", "trace --depth 1", "check --ops", "attention --depth 1", "memory --depth 1")),
        *map(swept, ("spectrum --depth 1", "sweep", "grads --time --hist")),
    ],
)
def test_it_is_read_again(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    command, *options = words.split()
    cli(command, "net.py:Net", "--input", "2x5x16", *options, "-o", "saved.json")
    for name in ("again.json", "page.html"):
        answer = cli("report" if name == "page.html" else "show", "saved.json", "-o", name)
        assert answer.code == 0 and Path(name).exists(), answer.err
    before, after = (json.loads(Path(name).read_text()) for name in ("saved.json", "again.json"))
    for one, other in zip(before["reports"], after["reports"], strict=True):
        assert one["rows"] == other["rows"] and one["columns"] == other["columns"]


def test_rows_that_were_merged_can_not_be_drawn(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    cli("graph", "net.py:Net", "--input", "2x5x16", "--depth", "1", "-o", "saved.json")
    answer = cli("show", "saved.json", "-o", "drawn.dot")
    assert answer.code == 2 and "the rows of this graph were merged, and can't be drawn" in answer.err
    assert answer.err.count("\n") == 1 and not Path("drawn.dot").exists()


HOSTILE = """
import torch
from torch import nn

class NaN(nn.Module):
    def __init__(self):
        super().__init__()
        self.Infinity = nn.Linear(4, 4)

    def forward(self, x):
        return self.Infinity(x)

class Infinity(nn.Sequential):
    def __init__(self):
        super().__init__()
        self.add_module("NaN", NaN())
        self.add_module("-Infinity", nn.Linear(4, 4))

if __name__ == "__main__":
    model = Infinity()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
"""
MODEL = ("named.py:Infinity", "--input", "2x4")


@pytest.mark.parametrize(
    ("saves", "reads"),
    [
        (("activations", *MODEL, "-o", "saved.json"), ("show", "saved.json")),
        (("run", "-q", "-o", "saved.run.jsonl", "named.py"), ("show", "saved.run.jsonl")),
        swept(("activations", *MODEL, "--dump", "dump"), ("diff", "dump", "dump")),
        swept(("check", *MODEL, "--save", "base.json"), ("check", *MODEL, "--against", "base.json")),
    ],
)
def test_names_that_strict_json_has_for_numbers_are_names(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: Any, reads: Any
) -> None:
    """JSON writes a figure that is not finite as "NaN" or "Infinity", which layers and classes may be named, too."""
    monkeypatch.chdir(tmp_path)
    Path("named.py").write_text(HOSTILE)
    assert cli(*saves).code == 0
    answer = cli(*reads)
    assert answer.code == 0, answer.err
    assert reads[0] != "show" or ("NaN" in answer.out and "-Infinity" in answer.out)

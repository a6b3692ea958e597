"""`hookcli diff` of models that arrive compiled, in every way in which programs compile them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Cli = Callable[..., Any]
INPUT = ("--input", "2x3x8x8")
FILE = """
import torch
from torch import nn

def wrong(graph, inputs):
    return lambda *args: [2 * x for x in graph(*args)]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.block = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.block(self.conv(x)).mean((2, 3)))

class Decorated(Net):
    forward = torch.compile(Net.forward, backend=wrong)

def wrapped():
    return torch.compile(Net(), backend=wrong)

def in_place():
    model = Net()
    model.compile(backend=wrong)
    return model

def wrapped_part():
    model = Net()
    model.block = torch.compile(model.block, backend=wrong)
    return model

def part_in_place():
    model = Net()
    model.block.compile(backend=wrong)
    return model

def assigned():
    model = Net()
    model.block.forward = torch.compile(model.block.forward, backend=wrong)
    return model
"""


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    (tmp_path / "net.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("how", ["wrapped", "in_place", "Decorated", "wrapped_part", "part_in_place", "assigned"])
@pytest.mark.parametrize("first", [True, False])
def test_a_side_that_arrives_compiled(cli: Cli, how: str, first: bool) -> None:
    """Its modules have the names of the model as written, and its backend, which doubles results, is what runs."""
    sides = ("net.py:Net", f"net.py:{how}")
    ran = cli("diff", *(sides if first else sides[::-1]), *INPUT)
    part = "block" if how in ("wrapped_part", "part_in_place", "assigned") else "(model)"
    assert ran.code == 1 and ran.out.startswith(f"First difference: {part}, relative error {'1' if first else '0.5'}")
    assert "renamed" not in ran.out and "only in" not in ran.out and "_orig_mod" not in ran.out
    assert "part of a compiled module" in ran.out


def test_both_sides_arrive_compiled(cli: Cli) -> None:
    ran = cli("diff", "net.py:wrapped", "net.py:in_place", *INPUT, "--backward")
    assert ran.code == 0 and ran.out.startswith("Identical, bit for bit") and "conv.weight" in ran.out


def test_names_choose_modules_of_the_model_as_written(cli: Cli) -> None:
    ran = cli("diff", "net.py:wrapped_part", "net.py:Net", *INPUT, "--match", "conv")
    assert ran.code == 0 and ran.out.startswith("Identical, bit for bit") and "1 compared" in ran.out

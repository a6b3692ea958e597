"""The first line says which values are random; figures that depend on batch and mode name both, in Python, too."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import swept

import hookcli
from hookcli.reporters.footer import run_line

Cli = Callable[..., Any]
NET = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh())

def tokens():
    return nn.Embedding(9, 4)

def example():
    return net(), torch.ones(3, 8)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    torch.save(torch.nn.Sequential(torch.nn.Linear(8, 4)).state_dict(), "best.pt")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("activations squeezenet1_1", "squeezenet1_1 · random weights and input 1x3x224x224 · cpu"),
        swept("grads squeezenet1_1 -i 2x3x64x64", "squeezenet1_1 · random weights and input 2x3x64x64 · cpu"),
        swept(
            "activations squeezenet1_1 --fill ones", "squeezenet1_1 · random weights · input 1x3x224x224 of ones · cpu"
        ),
        ("shapes squeezenet1_1", "squeezenet1_1 · input 1x3x224x224 · meta"),  # no values
        ("activations net.py:net -i 2x8", "net.py:net · weights as built · random input 2x8 · cpu"),
        ("check net.py:net -i 2x8", "net.py:net · weights as built · random input 2x8 · cpu"),
        ("inputs net.py:example", "net.py:example · weights as built · input 3x8 (its example) · cpu"),
        ("grads net.py:net -i 2x8 --weights best.pt", "net.py:net · weights best.pt · random input 2x8 · cpu"),
        (
            "inputs net.py:tokens -i 2x8:int64",
            "net.py:tokens · weights as built · random input 2x8:int64 (0 or 1) ·",
        ),
        (
            "activations net.py:tokens -i 2x8:int64 --fill ones",
            "net.py:tokens · weights as built · input 2x8:int64 of ones ·",
        ),
        ("shapes net.py:tokens -i 2x8:int64", "net.py:tokens · input 2x8:int64 · meta"),
        swept("activations hf:bert --arg num_hidden_layers=1", "hf:bert · random weights and input "),
    ],
)
def test_the_line_on_the_run_says_what_is_random(cli: Cli, command: str, said: str) -> None:
    assert any(line.startswith(said) for line in first_lines(cli(*command.split()).out))


def first_lines(out: str) -> list[str]:
    """The first line, the one below it (below what is largest), and the last one: findings have the run below them."""
    lines = out.splitlines()
    return [*lines[:2], *(lines[-1:] if lines[0].endswith("modules)") else [])]


def headlines(out: str) -> list[str]:
    """The figures that depend on the batch and the mode, each with what it says of them."""
    return re.findall(r"(?:[\d.]+ [KMG]?MACs(?: \([\d,]+\))?|memory held to train|Peak) at [^:·\n]+", out)


@pytest.mark.sweep
def test_one_rule_for_batch_and_mode(cli: Cli) -> None:
    forward, train = cli("shapes", "squeezenet1_1").out, cli("shapes", "squeezenet1_1", "--train").out
    assert headlines(forward) == ["349.2 MMACs (349,151,936) at batch 1, eval", "memory held to train at batch 1"]
    assert headlines(train) == ["698.3 MMACs (698,303,872) at batch 2, train", "memory held to train at batch 2"]
    assert headlines(cli("memory", "squeezenet1_1").out) == ["Peak at batch 2, train"]
    assert headlines(cli("memory", "squeezenet1_1", "--inference").out) == ["Peak at batch 1, eval"]


@pytest.mark.sweep
def test_a_list_of_items_is_a_batch_of_them(cli: Cli) -> None:
    out = cli("shapes", "ssdlite320_mobilenet_v3_large", "--batch-size", "2", "--depth", "1").out
    assert "at batch 2, eval" in out and "input 3x320x320, 3x320x320" in out


def test_python_says_the_same_of_its_own_model(cli: Cli) -> None:
    model = torch.nn.Linear(8, 4)
    shapes, activations = hookcli.capture(model, torch.randn(5, 8), ["shapes", "activations"])
    assert "160 MACs at batch 5, train" in str(shapes)
    assert run_line(activations).startswith("Linear · input 5x8 · cpu")  # whose values they are, the caller knows
    (shapes,) = hookcli.capture(model.eval(), torch.randn(8), ["shapes"])
    assert "32 MACs in eval mode" in str(shapes)  # one item without a batch

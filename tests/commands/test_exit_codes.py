"""Exit codes, by the one rule of docs/commands.md: 0 no error, 1 a check or comparison failed, 2 it could not run."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands.check_nets import IN, PARTS, Cli
from commands.test_run_nan import run
from support import swept

ON, FORGETS = ("net.py:Net", *IN), ("parts.py:Forgets", *IN)
HALVED = """
class Halved(Net):
    def forward(self, x):
        return super().forward(x) / 2
"""
CASES = {
    ("check", *FORGETS): 0,  # a warning
    ("check", *FORGETS, "--fail-on", "warning"): 1,
    ("check", "parts.py:Unused", *IN): 1,
    ("check", "parts.py:Fails", *IN): 2,
    ("diff", "net.py:Net", "net.py:Net", *IN): 0,
    ("diff", "net.py:Net", "parts.py:Halved", *IN): 1,
    ("diff", "net.py:Net", "net.py:none", *IN): 2,
    ("report", "parts.py:Unused", *IN, "--output", "page.html"): 0,  # of a model with errors
    ("sweep", *ON, "--seed", "0"): 0,
    ("activations", *ON): 0,
    ("activations", "parts.py:Fails", *IN): 2,
    ("show", "none.json"): 2,
}
TRAINING = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
if "dead" in sys.argv:
    nn.init.constant_(net[0].bias, -50.0)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(4):
    loss = net(torch.randn(16, 8)).square().mean() * (float("nan") if "nan" in sys.argv else 1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
sys.exit(7 if "fails" in sys.argv else 0)
"""


@pytest.fixture(autouse=True)
def parts(net: Path) -> Path:
    (net / "parts.py").write_text(PARTS + HALVED)
    return net


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_of_commands(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli(*words)
    assert ran.code == CASES[words], ran.out + ran.err


@pytest.mark.parametrize(
    ("given", "code"), [("dead", 0), swept("healthy", 0), swept("nan", 1), swept("fails", 7), swept("nan fails", 7)]
)
def test_of_a_run_that_is_checked(net: Path, given: str, code: int) -> None:
    (net / "train.py").write_text(TRAINING)
    ran = run(net, "run", "--check", "train.py", *given.split())
    assert ran.returncode == code and "worst: " not in ran.stderr, ran.stderr
    assert given != "dead" or "\n2 warnings (" in ran.stderr, ran.stderr

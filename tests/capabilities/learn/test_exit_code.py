"""What is said of checks, and the exit code of --check, where the first line names a fault that no check judges."""

from __future__ import annotations

from pathlib import Path

from commands.test_run_nan import run

SCRIPT = """
import sys, torch
from torch import nn

class Reader(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.body, self.head = nn.LSTM(4, 8, batch_first=batch_first), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])

torch.manual_seed(0)
fault = sys.argv[1]
blocks = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)])
blocks[1].requires_grad_(fault != "frozen")
net = blocks if fault == "frozen" else Reader(batch_first=fault == "none")
optimizer = torch.optim.Adam(net.parameters(), 0.02)
for step in range(80):
    x = torch.randn(32, 1, 4) + 0.1 * torch.randn(32, 5, 4)
    y = x[:, -1].argmax(1)
    loss = nn.functional.cross_entropy(net(x[:, -1] if fault == "frozen" else x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SAID = "hookcli: Reader: body takes dimension 0 of its input (32, the batch) for the sequence: give batch_first=True"
REASON = "hookcli: exit code 1: the first line names a fault"


def test_checks_that_pass_do_not_hide_a_fault_that_the_first_line_names(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    kept = ("-o", "x.run.jsonl", "train.py", "sequence")
    plain = run(tmp_path, "run", *kept)
    assert plain.returncode == 0 and "--check would make the exit code 1" in plain.stderr
    checked = run(tmp_path, "run", "--check", *kept)
    said = checked.stderr.splitlines()
    assert said[1].startswith(SAID), checked.stderr
    assert checked.returncode == 1 and said[-1] == REASON
    (passed,) = (line for line in said if "checks passed" in line)
    assert "checks passed, though the first line names a fault (" in passed
    shown = run(tmp_path, "show", "--probe", "check", "x.run.jsonl")
    assert passed in shown.stdout + shown.stderr


def test_what_may_be_meant_is_said_and_does_not_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ran = run(tmp_path, "run", "--check", "-o", "x.run.jsonl", "train.py", "frozen")
    assert ran.stderr.splitlines()[1].startswith("hookcli: Sequential: 1 is frozen"), ran.stderr
    assert ran.returncode == 0


def test_a_run_without_a_fault_passes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ran = run(tmp_path, "run", "--check", "-o", "x.run.jsonl", "train.py", "none")
    assert ran.returncode == 0 and "though" not in ran.stderr and "checks passed (" in ran.stderr

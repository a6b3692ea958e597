"""The first line of `hookcli run`, without `--check`, names the cause that the checks find; a healthy twin has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands.test_run_nan import run

from hookcli.record.file.reading import read_record

TRAIN = '''
import sys, torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

fault = {name: name == sys.argv[1] for name in ("checkpoint", "adapters", "bfloat16", "teacher")}
torch.manual_seed(0)


class Adapter(nn.Module):
    """A frozen layer with a product of two factors beside it."""

    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features) * (0 if fault["adapters"] else 0.3))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 5)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        if sys.argv[2] == "checkpoint":
            x = checkpoint(self.body, x, use_reentrant=fault["checkpoint"])
        else:
            x = self.body(x)
        return self.head(torch.relu(x))


class Teacher(Net):
    pass


net, teacher = Net(), Teacher()
if sys.argv[2] == "unused":
    net.spare = nn.Linear(32, 32)
if sys.argv[2] == "clipped":
    net.body = nn.Sequential(net.body, nn.LayerNorm(32))
if sys.argv[2] == "checkpoint":
    net.stem.requires_grad_(False)
elif sys.argv[2] == "adapters":
    net.stem, net.body, net.head = map(Adapter, (net.stem, net.body, net.head))
elif fault["bfloat16"]:
    net.to(torch.bfloat16)
held = teacher if fault["teacher"] else net
rate = 1e-6 if fault["bfloat16"] else 0.01
kind = torch.optim.SGD if sys.argv[2] == "clipped" else torch.optim.Adam
optimizer = kind([p for p in held.parameters() if p.requires_grad], rate)
dtype = net.head.weight.dtype if sys.argv[2] == "bfloat16" else torch.float32
for step in range(60):
    x = torch.randn(32, 12)
    scores, labels = net(x.to(dtype)).float(), x[:, :5].argmax(1)
    loss = F.cross_entropy(scores, labels)
    if sys.argv[2] == "teacher":
        with torch.no_grad():
            wanted = (3 * teacher(x)).softmax(1)
        loss = F.kl_div(scores.log_softmax(1), wanted, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    if sys.argv[2] == "clipped":
        nn.utils.clip_grad_norm_(net.parameters(), 1e-8)
    optimizer.step()
'''


def first_line(folder: Path, fault: str, training: str, *options: str) -> str:
    """The first line after the run, without the model's name; "" if it is that on the run itself."""
    (folder / "train.py").write_text(TRAIN)
    ran = run(folder, "run", *options, "train.py", fault, training)
    assert ran.returncode == (1 if options and fault != "none" else 0), ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line.startswith("hookcli: ") and "recording in" not in line]
    said = lines[0].removeprefix("hookcli: ")
    return "" if said.startswith("train.py: ") else said.partition(": ")[2]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("checkpoint", "body: no gradient reached weight, bias: it ran in a reentrant checkpoint whose inputs need no"),
        ("adapters", "A and B are both zero, so each gets a zero gradient"),
        ("bfloat16", "apart, and an update of less than half of that is lost (learning rate 1e-06)"),
        (
            "teacher",
            "no optimizer has the parameters of stem, body, head: gradients arrive, but nothing moves them; Adam",
        ),
    ],
)
def test_a_plain_run_names_the_cause_and_ends_as_the_program_did(tmp_path: Path, fault: str, words: str) -> None:
    assert words in first_line(tmp_path, fault, fault)
    assert first_line(tmp_path, "none", fault) == ""
    healthy = read_record(tmp_path / "train-2.run.jsonl")
    assert not any(report.probe == "check" for step in healthy.last() for report in step.reports)


def test_show_and_check_say_the_same(tmp_path: Path) -> None:
    checked = first_line(tmp_path, "adapters", "adapters", "--check")
    assert "A and B are both zero" in checked
    shown = run(tmp_path, "show", "train.run.jsonl")
    assert shown.stderr.splitlines()[0] == f"hookcli: Net: {checked}"


def test_modules_that_never_run_are_no_fault_and_clipped_gradients_are_named(tmp_path: Path) -> None:
    """An unused part gets no gradient, and needs none; float32 is not to blame for gradients that are clipped away."""
    assert first_line(tmp_path, "none", "unused") == ""
    said = first_line(tmp_path, "none", "clipped")
    norms = re.search(r"clipped from a norm of ([\d.]+) to 1\.000e-08: float32 numbers near", said)
    assert norms is not None and float(norms[1]) > 0.1, said
    assert said.endswith("; clip gradients to a larger norm")


BESIDE = """
import sys, torch
from torch import nn

torch.manual_seed(0)
net, critic = nn.Linear(8, 4), nn.Linear(8, 4)
optimizer = torch.optim.Adam([*net.parameters(), *critic.parameters()], 0.01)
for step in range(40):
    x = torch.randn(32, 8)
    loss = (net(x) - x[:, :4]).square().mean() * float(sys.argv[1]) + 0.0 * (critic(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("weight", ["1", "0"])
def test_zeros_for_one_model_are_no_fault_where_another_learns(tmp_path: Path, weight: str) -> None:
    """A loss that has no weight yet; without the other one nothing is learned."""
    (tmp_path / "train.py").write_text(BESIDE)
    ran = run(tmp_path, "run", "train.py", weight)
    line = next(one for one in ran.stderr.splitlines() if one.startswith("hookcli: ") and "recording in" not in one)
    assert ("every gradient" in line) == (weight == "0"), line

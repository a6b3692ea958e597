"""A run that ends with NaN or Inf: it names the command that finds the first one, whose record says what led to it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import forks
import pytest
from record.launching.support import ENV

from hookcli.record.file.reading import read_record

SCRIPT = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
for step in range(int(sys.argv[2])):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).pow(2).sum()
    loss.backward()
    optimizer.step()
"""


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hookcli", *argv]
    return forks.run(command, cwd=folder, env=ENV, capture_output=True, text=True, timeout=120)


def test_the_first_nan_is_found_by_the_command_that_the_run_names(tmp_path: Path) -> None:
    (tmp_path / "my train.py").write_text(SCRIPT)
    plain = run(tmp_path, "run", "my train.py", "1e20", "5")
    assert plain.returncode == 0, plain.stderr
    said = re.search(r"\nNext: hookcli (run --first-bad stop --ops .*)\n", plain.stderr)
    assert said is not None, plain.stderr
    options, rest = shlex.split(said[1])[:4], shlex.split(said[1])[4:]
    assert rest == ["my train.py", "1e20", "5"]
    found = run(tmp_path, *options, "--keep-bad", "bad", "--output", "bad.jsonl", *rest)
    assert found.returncode == 1
    assert re.search(r"the update at step \d was \de\d+ times the weights; learning rate 1e\+20", found.stderr)
    (bad,) = read_record(tmp_path / "bad.jsonl").non_finite
    (kept,) = (tmp_path / "bad").glob("*.py")
    assert shlex.quote(str(kept)) in bad.kept


@pytest.mark.sweep
def test_a_loss_that_ends_at_inf_names_the_command_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ran = run(tmp_path, "run", "train.py", "1e12", "2")
    assert ran.stderr.endswith("\nNext: hookcli run --first-bad stop --ops train.py 1e12 2\n")


@pytest.mark.sweep
def test_a_run_that_ends_well_names_no_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ran = run(tmp_path, "run", "train.py", "0.001", "5")
    assert ran.returncode == 0 and "--first-bad" not in ran.stderr and "of it hookcli's own work" in ran.stderr
    assert (read_record(tmp_path / "train.run.jsonl").end or 0).hookcli_seconds > 0  # type: ignore[union-attr]


def test_in_one_pipe_the_summary_comes_after_what_the_program_has_printed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\nprint('at last')\n")
    command = [sys.executable, "-m", "hookcli", "run", "train.py"]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ran = forks.run(command, cwd=tmp_path, env=ENV, text=True, timeout=120, **both)
    assert -1 < ran.stdout.index("at last\n") < ran.stdout.index("hookcli: train.py: ")

"""hookcli run --live: the record is exported while the program runs, by a process beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pytest
from commands.growing import losses, until
from support import swept

Cli = Callable[..., Any]
SCRIPT = """
import os, sys, time
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
try:
    os.wait()
except ChildProcessError:
    print("no child", flush=True)
for step in range(3):
    optimizer.zero_grad()
    loss = net(torch.ones(2, 4)).square().mean()
    print(loss.item(), flush=True)
    loss.backward()
    optimizer.step()
{last}
"""
RUN = [sys.executable, "-m", "hookcli", "run", "--every", "1"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forks.address()  # its server stays in the folder where it begins
    monkeypatch.chdir(tmp_path)


def others_here() -> list[str]:
    """The processes that work in this folder, other than this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and (process / "cwd").readlink() == Path.cwd():
                found.append((process / "cmdline").read_text())
        except OSError:  # ended
            continue
    return found


@pytest.mark.parametrize("last", [swept(""), swept("os.kill(os.getpid(), 9)"), "while True: time.sleep(9)"])
def test_steps_are_exported_by_a_process_that_is_no_child_and_ends_with_the_program(last: str) -> None:
    Path("train.py").write_text(SCRIPT.format(last=last))
    command = [*RUN, "--live", "tensorboard", "train.py"]
    process = forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline().strip() for _ in range(4)]
    expected = [(step, round(float(text), 5)) for step, text in enumerate(said[1:])]
    until(lambda: losses("runs/train/Linear/train") == expected)
    if "while" in last:  # while the program runs
        process.terminate()
    out, err = process.communicate(timeout=60)  # which nobody else holds open
    assert said[0] == "no child" and out == ""
    assert "steps are exported to runs/train while the program runs; `tensorboard --logdir runs/train` shows" in err
    until(lambda: not others_here())


def test_each_run_has_a_folder_of_its_own() -> None:
    Path("train.py").write_text(SCRIPT.format(last=""))
    Path("runs/train").mkdir(parents=True)
    Path("runs/train/mine").touch()
    for option in ("tensorboard", "tensorboard=logs/here"):
        assert forks.run([*RUN, "--live", option, "train.py"], capture_output=True, check=False).returncode == 0
    until(lambda: len(losses("runs/train-2/Linear/train")) == len(losses("logs/here/Linear/train")) == 3)
    assert sorted(path.name for path in Path("runs/train").iterdir()) == ["mine"]
    until(lambda: not others_here())


@pytest.mark.sweep
def test_a_command_keeps_its_name_while_it_runs() -> None:
    ran = forks.run([*RUN, "--live", "tensorboard", "ls"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "ls.run.jsonl\n"), ran.stderr
    until(lambda: not others_here())
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--live", "tensorbord"), "unknown --live 'tensorbord'; did you mean tensorboard?"),
        (("--live", "parquet"), "unknown --live 'parquet'; choose from: tensorboard, wandb"),
        (("--live", "tensorboard=full"), "--live full: is not empty; name another folder, or delete this one first"),
        swept(("--live", "tensorboard=train.py"), "--live train.py: is a file; this format writes a folder"),
        (("--live", "tensorboard", "-o", "/dev/null"), "can't read /dev/null, a pipe or device; name a file"),
    ],
)
def test_mistakes_are_told_before_the_script_runs(cli: Cli, argv: tuple[str, ...], said: str) -> None:
    Path("train.py").write_text("raise AssertionError")
    Path("full").mkdir()
    Path("full/something").touch()
    ran = cli("run", *argv, "train.py")
    assert ran.code == 2 and said in ran.err and len(ran.err.splitlines()) == 1, ran.err
    assert sorted(path.name for path in Path().iterdir()) == ["full", "train.py"]

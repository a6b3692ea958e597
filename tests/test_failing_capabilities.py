"""Capabilities of other distributions with faults: each costs a line that names it, and the rest works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forks
import pytest

import hookcli

PACKAGE = Path(hookcli.__file__).parent
NET = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
"""
TRAIN = """
import torch
from net import Net

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((4, 4), 1.0 if step < 2 else float("inf"))).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def install(folder: Path, manifests: dict[str, str], code: str = "") -> None:
    """Put the distribution "odd 1" into the folder: manifests by the names of capabilities, and its module `odd`."""
    info = folder / "odd-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    entries = "\n".join(f"{name} = odd_manifests:{name}" for name in manifests)
    (info / "entry_points.txt").write_text(f"[hookcli.capabilities]\n{entries}\n")
    lines = [f"{name} = Capability(name='{name}', page='', {fields})" for name, fields in manifests.items()]
    imported = "from hookcli.registry.capability import Capability, RecorderOption"
    (folder / "odd_manifests.py").write_text("\n".join([imported, *lines, ""]))
    (folder / "odd.py").write_text(code)


def hookcli_lines(folder: Path, *lines: str) -> list[tuple[str, str, str]]:
    """What these command lines give in one process, in turn: the exit code, stdout and stderr of each."""
    script = f"""if True:
        import sys
        from hookcli.cli import main
        for line in {list(lines)!r}:
            code = main(line.split())
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                print(f"<{{code}}>", end="=====", file=stream)
                stream.flush()
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (PACKAGE.parent, folder)))}
    words = [sys.executable, "-c", script]
    ran = forks.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    both = zip(ran.stdout.split("=====")[:-1], ran.stderr.split("=====")[:-1], strict=True)
    return [(out.rpartition("<")[2][:-1], out.rpartition("<")[0], err.rpartition("<")[0]) for out, err in both]


def recorded(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of train.py."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (PACKAGE.parent, folder)))}
    words = [sys.executable, "-m", "hookcli", "run", *options, "train.py"]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)


PARTS = """
from hookcli.record.observe.parts import RecorderPart, StepPart

class Shadowed(StepPart):
    def __init__(self):
        self.found = []

class Texts(StepPart):
    def lines(self, step, *, scaled):
        return ["text"]

class Shadowing(RecorderPart):
    def begin_step(self, step):
        return Shadowed()

class Texting(RecorderPart):
    def begin_step(self, step):
        return Texts()

class Bare(RecorderPart):
    notes = ()
"""


def test_a_failing_part_of_a_recorder_is_named_and_takes_no_other_out(net: Path) -> None:
    parts = {"shadowing": "Shadowing", "texting": "Texting", "bare": "Bare"}
    install(net, {name: f"recorder='odd:{kind}'" for name, kind in parts.items()}, PARTS)
    ran = recorded(net, "--first-bad", "report")
    why = {
        "shadowing": "TypeError: 'list' object is not callable",
        "texting": "TypeError: lines() returned str among its lines",
        "bare": "TypeError: 'tuple' object is not callable",
    }
    for name, error in why.items():
        told = f"{name} (from odd 1): left out from here on, since it failed ({error}); the rest is recorded"
        assert ran.stderr.count(f"warning: Net: {told}") + ran.stderr.count(f"warning: {told}") == 1, ran.stderr
    assert "bug in hookcli" not in ran.stderr and ran.returncode == 0
    assert "first non-finite value: " in ran.stderr and "3 recorded steps" in ran.stderr

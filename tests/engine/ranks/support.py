"""Models for several processes, and how to run command lines in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import forks

from hookcli.table import Report

MODELS = """
import os, pathlib, signal, time
import torch
from torch import nn
from hookcli.engine.ranks import watchdog

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.act = nn.ReLU(inplace=True)
        self.pos = nn.Embedding(16, 4)   # does not grow with the batch
        self.unused = nn.Linear(3, 3)
        self.blocks = nn.Sequential(nn.Linear(32, 7), nn.Linear(7, 32))
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        x = self.act(self.bn(self.conv(x))).mean((2, 3))
        x = x[:, :, None] + self.pos(torch.arange(1, device=x.device))[None]
        return self.fc(self.blocks(x.flatten(1)))

class Only(nn.Module):
    '''Does something in one rank alone.'''
    def __init__(self, what, ranks):
        super().__init__()
        self.what, self.ranks = what, ranks

    def forward(self, x):
        if int(os.environ.get("RANK", 0)) in self.ranks:
            if self.what == "raise":
                raise ValueError("no luck")
            if self.what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "hang":
                pathlib.Path(f"hangs{os.environ['RANK']}").write_text(str(os.getpid()))
                time.sleep(600)
            if self.what == "leave":
                os._exit(7)
            if self.what == "swallow":
                watchdog._END = 2.0  # seconds to wait in vain
                while True:
                    try:
                        time.sleep(600)
                    except Exception:
                        pass
            if self.what == "nan":
                return x * float("nan")
            if self.what == "narrow":
                return x[:, :2]
            if self.what == "wait":  # for a collective that the other does not call
                torch.distributed.barrier()
        return x

class Values(nn.Module):
    '''Reads a value, so that it does not run on the meta device.'''
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return self.drop(self.fc(x)) if float(x.sum()) < 1e9 else x

def squares(output):
    return (output ** 2).sum()

def only(what, ranks=(1,)):
    return nn.Sequential(nn.Linear(4, 4), Only(what, ranks), nn.ReLU())
"""


def run(*command: str, folder: Path, limit: float = 500) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, in a process of its own."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    argv = [sys.executable, *command]
    return forks.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=limit, check=False)


def torchrun(processes: int, *command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """So many ranks of a script, or of `-m MODULE`."""
    return run("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *command, folder=folder)


def hookcli(*argv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command line as a process."""
    return run("-m", "hookcli", *argv, folder=folder)


def reports_of_ranks(commands: Mapping[str, Sequence[str]], folder: Path, processes: int) -> dict[str, Report]:
    """The reports of command lines that so many processes run, one after another, by name."""
    (folder / "commands.json").write_text(json.dumps(commands))
    ran = torchrun(processes, str(Path(__file__).with_name("jobs.py")), str(folder), folder=folder)
    assert ran.returncode == 0, ran.stderr[:3000]
    assert ran.stdout == ""
    return {name: load(folder / f"{name}.json") for name in commands}


def load(path: Path) -> Report:
    return Report.from_dict(json.loads(path.read_text())["reports"][0])

"""Ctrl-C at any moment of any command: exit code 130, one line, and no output file of the run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import forks
import pytest
from support import TIMED, swept

NET = """
import torch
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
"""
ON = ("net.py:Net", "--input", "4x8")
COMMANDS = {
    "shapes": ("shapes", *ON, "--no-cache", "-o", "out.json"),
    "activations": ("activations", *ON, "-o", "out.html"),
    "activations, printed": ("activations", *ON),
    "inputs": ("inputs", *ON, "-o", "out.csv"),
    "grads": ("grads", *ON, "--of", "inputs", "-o", "out.md"),
    "graph": ("graph", *ON, "-o", "out.dot"),
    "flow": ("flow", *ON, "-o", "out.json"),
    "trace": ("trace", *ON, "-o", "out.json"),
    "memory": ("memory", *ON, "--fits", "1GB", "-o", "out.json"),
    "hooks": ("hooks", "net.py:Net", "-o", "out.json"),
    "check": ("check", *ON, "-o", "out.sarif", "--report", "page.html", "--save", "base.json"),
    "diff": ("diff", "net.py:Net --dtype bfloat16", "net.py:Net", "--input", "4x8", "-o", "out.json"),
    "diff of reports": ("diff", "a.json", "b.json", "-o", "out.json"),
    "diff of weights": ("diff", "a.safetensors", "b.safetensors", "-o", "out.json"),
    "report": ("report", *ON, "-o", "out.html"),
    "dump": ("activations", *ON, "--dump", "dumped"),
    "package": ("package", "net.py:Net", "--intern", "net", "--extern", "**", "-o", "out.pt2pkg"),
    "weights": ("weights", "a.safetensors", "-o", "out.json"),
    "show": ("show", "a.json", "-o", "out.html"),
    "models": ("models", "-o", "out.json"),
    "run": ("run", "-q", "-o", "out.run.jsonl", "train.py"),
}


KEPT = {"dump": "dumped", "run": "out.run.jsonl"}  # what was seen until then, as the documentation says


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("files")
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text("import torch\nfrom net import Net\nNet()(torch.ones(4, 8)).sum().backward()\n")
    for name in ("a", "b"):
        save_file({f"{n}.weight": torch.rand(64, 8) for n in range(20)}, folder / f"{name}.safetensors")
        assert hookcli(folder, "0", "activations", *ON, "-q", "-o", f"{name}.json").returncode == 0
    return folder


def hookcli(folder: Path, after: str, *command: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command, interrupted `after` seconds of processor time; never for 0, which leaves a file `spent`."""
    argv = (sys.executable, "-c", TIMED, after, *command)
    return forks.run(argv, fresh=fresh, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def interrupted(files: Path, folder: Path, after: float, name: str, fresh: bool = False) -> int:
    """The exit code of the command, after a look at what it has said and left."""
    for file in files.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    before = {path.name for path in folder.iterdir()} | {KEPT.get(name, "__pycache__"), "__pycache__"}
    ran = hookcli(folder, f"{after:f}", *COMMANDS[name], fresh=fresh)
    left = {path.name for path in folder.iterdir()} - before
    if ran.returncode == 130:
        said = [line for line in ran.stderr.splitlines() if not line.startswith("hookcli: wrote ")]  # what is there
        assert (left, said) == (set(), ["hookcli: interrupted"])
    elif name == "run" and ran.returncode == -signal.SIGINT:  # the script's own
        assert ran.stderr.endswith("KeyboardInterrupt\n")
    else:  # the command had come to its end
        assert ran.returncode in (0, 1) and "Traceback" not in ran.stderr, ran
        assert not any(name.startswith(".") for name in left)
    return ran.returncode


FEW = ("shapes", "check", "diff", "dump", "package", "report", "run")  # ways to write


@pytest.mark.parametrize("name", [name if name in FEW else swept(name) for name in COMMANDS])
@pytest.mark.parametrize("moments", [1, pytest.param(30, marks=pytest.mark.sweep)])
def test_at_any_moment(files: Path, tmp_path: Path, name: str, moments: int) -> None:
    folders = [tmp_path / str(number) for number in range(moments)]
    rng = Random(f"{name}{moments}")
    for folder in folders:
        folder.mkdir()
        interrupted(files, folder, rng.uniform(0.001, 0.3), name)


LOST = """
import signal, time
from torch import nn
class Net(nn.Linear):
    def __init__(self): super().__init__(8, 8)
    def forward(self, x):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            if "HOW" == "import":
                raise ImportError("numpy.core failed to import") from None
            if "HOW" == "bug":
                raise TypeError("cannot unpack non-iterable int object") from error
        time.sleep(60)
        return super().forward(x)
"""


@pytest.mark.parametrize("how", ["import", "bug", "dropped"])
def test_whatever_becomes_of_its_exception(files: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "net.py").write_text(LOST.replace("HOW", how))
    ran = hookcli(tmp_path, "1000", "activations", *ON, "-o", "out.json")
    assert (ran.returncode, ran.stderr) == (130, "hookcli: interrupted\n") and not (tmp_path / "out.json").exists()


AGAIN = LOST.replace("time.sleep(60)", "time.sleep(0)").replace(
    "            if", "            signal.raise_signal(2)\n            if", 1
)


def test_the_second_ends_the_process_at_once(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(AGAIN)
    ran = hookcli(tmp_path, "1000", "activations", *ON, "-o", "out.json")
    assert (ran.returncode, ran.stderr) == (130, "hookcli: interrupted\n")
    assert {path.name for path in tmp_path.iterdir()} <= {"net.py", "__pycache__"}

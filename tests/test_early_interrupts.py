"""Ctrl-C while a command line is still being imported: one line, exit code 130, and nothing of Python's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import forks
import pytest
from support import swept

import hookcli

# Interrupts the process as it begins to import a module, in ranks alone where RANKS is set. What `swallow` is set for
# is an import that loses the exception, as importlib's own callbacks of weak references do.
INTERRUPTS = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT"] and ("RANKS" not in os.environ or "HOOKCLI_LAUNCHER" in os.environ):
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000): pass
            except BaseException:
                if "SWALLOW" not in os.environ:
                    raise
sys.meta_path.insert(0, Finder())
"""
NET = "from torch import nn\ndef Net(): return nn.Linear(4, 4)\n"
MODULE = (sys.executable, "-m", "hookcli")


def console_script() -> tuple[str, ...]:
    """The command that pip makes a console script of."""
    project = tomllib.loads((Path(hookcli.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    module, name = project["scripts"]["hookcli"].split(":")
    return sys.executable, "-c", f"import sys; from {module} import {name}; sys.exit({name}())"


def interrupted(
    folder: Path, at: str, *command: str, ignoring: bool = False, fork: bool = False, **values: str
) -> subprocess.CompletedProcess[str]:
    """Run the command as a new process, or as a fork that has imported torch, where others are interrupted."""
    (folder / "sitecustomize.py").write_text(INTERRUPTS)
    (folder / "net.py").write_text(NET)
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return forks.run(
        command,
        fresh=not fork,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "AT": at, **values},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN) if ignoring else None,
    )


@pytest.mark.parametrize(
    "at", ["hookcli.cli", swept("typer"), swept("hookcli.commands.options"), "hookcli.commands.models"]
)
@pytest.mark.parametrize("command", [MODULE, console_script()], ids=["module", "console script"])
def test_it_is_said_in_one_line(tmp_path: Path, at: str, command: tuple[str, ...]) -> None:
    ran = interrupted(tmp_path, at, *command, "models")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "hookcli: interrupted\n")


def test_no_import_can_lose_it(tmp_path: Path) -> None:
    ran = interrupted(tmp_path, "typer", *MODULE, "models", SWALLOW="1")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "hookcli: interrupted\n")


@pytest.mark.parametrize("at", ["hookcli.record.launching", swept("hookcli.commands.run")])
def test_before_a_script_begins(tmp_path: Path, at: str) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    ran = interrupted(tmp_path, at, *MODULE, "run", "train.py")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "hookcli: interrupted\n")


@pytest.mark.sweep
def test_the_script_s_own_interrupt_stays_python_s(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import colorsys\n")
    ran = interrupted(tmp_path, "colorsys", *MODULE, "run", "-q", "train.py")
    assert ran.returncode == -signal.SIGINT and ran.stderr.endswith("KeyboardInterrupt\n")


def test_a_job_in_the_background_that_ignores_interrupts_goes_on(tmp_path: Path) -> None:
    ran = interrupted(tmp_path, "typer", *MODULE, "--version", ignoring=True)
    assert ran.returncode == 0 and ran.stdout.startswith("hookcli ") and ran.stderr == ""


LAUNCHER = """
import forks, sys
from hookcli.__main__ import entry
forks._understood = lambda argv: False  # ranks are new processes
sys.exit(entry())
"""


@pytest.mark.parametrize("at", [*map(swept, ("typer", "torch"))])
def test_ranks_leave_it_to_their_launcher(tmp_path: Path, at: str) -> None:
    command = ("comm", "net.py:Net", "--input", "2x4", "--nproc", "2")
    ran = interrupted(tmp_path, at, sys.executable, "-c", LAUNCHER, *command, fork=True, RANKS="1")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "hookcli: interrupted\n")

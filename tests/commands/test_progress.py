"""The progress line on a real terminal: what it says, that it goes without a trace, and that it changes nothing."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forks
import pytest
from commands.shown import on_terminal
from fork_server import ForkServer, Ran
from records import HEADER, recorded_step, save

pytestmark = pytest.mark.xdist_group("streams")  # one server

NET = """
import os
import time
from torch import nn

class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(SECONDS)
        return super().forward(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.Sequential(Slow(4, 4), Slow(4, 4))

    def forward(self, x):
        return self.blocks(self.stem(x))

class Second(Net):
    def __init__(self):
        super().__init__()
        if os.environ["RANK"] == "0":
            open("building", "w").close()
            time.sleep(60)
        while not os.path.exists("building"):
            time.sleep(0.05)
        time.sleep(2)
        raise RuntimeError("no second")

class Failing(Net):
    def forward(self, x):
        super().forward(x)
        raise RuntimeError("out of luck")
"""
LINE = re.compile(r"\r\x1b\[K\x1b\[2m(.+?)\x1b\[0m")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:  # its progress lines appear at once, not after a second
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "net.py").write_text(NET.replace("SECONDS", "0.15"))
    (folder / "stuck.py").write_text(NET.replace("SECONDS", "30"))
    return folder


def run(server: ForkServer, folder: Path, *argv: str, err: str = "pty") -> tuple[Ran, list[str]]:
    """The run, and its progress lines without the spinner."""
    ran = server.run(*argv, "-i", "2x4", "-f", "json", folder=folder, err=err)
    return ran, [line[2:] for line in LINE.findall(ran.err)]


def left(text: str) -> str:
    """The text that stays on a terminal: what stands after the last clearing of each line."""
    return "\n".join(re.split(r"\r\x1b\[K", line)[-1] for line in text.replace("\r\n", "\n").split("\n"))


def test_it_says_time_stage_module_and_count(server: ForkServer, folder: Path) -> None:
    ran, lines = run(server, folder, "activations", "net.py:Net")
    inside = r"\d\.\d\d? s · running net.py:Net on cpu · blocks\.1, 5 of 5 modules"
    assert any(re.fullmatch(inside, line) for line in lines), lines
    assert left(ran.err) == "" and all(len(line) < 80 for line in lines)


@pytest.mark.sweep
def test_it_changes_no_figure_and_is_nowhere_but_on_a_terminal(server: ForkServer, folder: Path) -> None:
    seen: list[Any] = []
    for err in ("pty", "pipe", "file"):
        ran, lines = run(server, folder, "activations", "net.py:Net", err=err)
        seen.append([ran.code, json.loads(ran.out)["reports"][0]["rows"]])
        assert bool(lines) == (err == "pty")
        assert err == "pty" or ran.err == ""
    assert seen[0] == seen[1] == seen[2] and seen[0][0] == 0


@pytest.mark.sweep
def test_several_models_runs_and_backward(server: ForkServer, folder: Path) -> None:
    ran, lines = run(server, folder, "check", "net.py:Net", "net.py:Slow", "--repeat", "2")
    said = "\n".join(lines)
    assert "· model 1 of 2 · checking net.py:Net on cpu, run 2 of 2 · blocks.0" in said
    ran, lines = run(server, folder, "trace", "net.py:Net", "--passes", "2")
    assert any(re.search(r"pass 2 of 2, blocks\.0, 5 of 5 modules", line) for line in lines), lines
    assert left(ran.err) == ""


@pytest.mark.sweep
def test_two_models_in_step_and_a_record(server: ForkServer, folder: Path) -> None:
    ran, lines = run(server, folder, "diff", "net.py:Net", "net.py:Net")
    assert ran.code == 0 and any("in step · blocks." in line for line in lines), lines
    save(folder / "long.run.jsonl", [HEADER, *map(recorded_step, range(0, 3000, 20))])
    ran = server.run("show", "long.run.jsonl", "--step", "all", "-f", "json", folder=folder, err="pty")
    lines = LINE.findall(ran.err)
    assert any(re.search(r"step \d,\d{3} of 2,980 · reading long\.run\.jsonl", line) for line in lines), lines
    assert "reading" not in left(ran.err) and json.loads(ran.out)["reports"][0]["meta"]["step"] == 0


def test_nothing_stays_after_a_failure(server: ForkServer, folder: Path) -> None:
    ran, lines = run(server, folder, "activations", "net.py:Failing")
    assert lines and ran.code == 2
    assert left(ran.err).startswith("hookcli: error: ") and "running" not in left(ran.err)


@pytest.mark.sweep
def test_nothing_stays_after_the_failure_of_another_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    said = on_terminal(200, "comm", "net.py:Second", "-i", "2x4", both=True, passing=True)
    assert any("building net.py:Second" in line for line in LINE.findall(said)), said
    line, place = left(said).splitlines()
    assert line.startswith("hookcli: error: ") and line.endswith("no second") and place.startswith("  at net.py:"), said


@pytest.mark.sweep
def test_ctrl_c_ends_the_run_and_the_line(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hookcli", "activations", "stuck.py:Net", "-i", "2x4"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with forks.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment) as process:
        os.close(theirs)
        said = b""
        while b"blocks.0" not in said:
            said += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while data := os.read(ours, 65536):
                said += data
        except OSError:  # how Linux says that the other side is closed
            pass
    os.close(ours)
    assert process.returncode == 130
    assert LINE.search(said.decode()) and not re.search("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", left(said.decode()))

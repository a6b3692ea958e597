"""`hookcli explore`: what it opens, and what it says where it can't."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import forks
import pytest
from records import HEADER, end, recorded_step, save
from support import swept
from textual.app import App

from hookcli.capabilities.explore import command as explore
from hookcli.capabilities.explore.app import Explorer

Cli = Callable[..., Any]
NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.fc, self.fails = nn.Linear(4, 3), fails
    def forward(self, x):
        x = self.fc(x)
        if self.fails:
            raise ValueError("too bad")
        return x
"""


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models of each explorer that opens; there is a terminal."""
    seen: list[Any] = []
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(explore, "is_terminal", lambda stream: True)
    monkeypatch.setattr(App, "run", lambda self: seen.append(self._subjects))
    return seen


def test_a_model_is_measured_as_for_its_page(cli: Cli, opened: list[Any]) -> None:
    assert cli("explore", "net.py:Net", "-i", "2x4").code == 0
    ((subject,),) = opened
    assert cli("report", "net.py:Net", "-i", "2x4", "-o", "net.json").code == 0
    page = json.loads(Path("net.json").read_text())["reports"]
    rows = [(one.probe, len(one.rows)) for one in subject.reports(0)]
    assert rows == [(one["probe"], len(one["rows"])) for one in page] and len(rows) > 5
    assert cli("explore", "net.json").code == 0
    assert [(one.probe, len(one.rows)) for one in opened[1][0].reports(0)] == rows


def test_a_model_that_fails_opens_with_what_was_seen_and_is_an_error(cli: Cli, opened: list[Any]) -> None:
    ran = cli("explore", "net.py:Net", "-i", "2x4", "--arg", "fails=True")
    assert ran.code == 2 and "too bad" in ran.err
    assert {one.probe for one in opened[0][0].reports(0)} >= {"check", "activations"}


def test_without_a_terminal_it_names_the_command_that_prints(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = cli("explore", "saved.json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "hookcli: error: stdout is not a terminal; `hookcli show` prints records and saved reports\n"


def test_without_textual_it_says_what_to_install(cli: Cli, opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    ran = cli("explore", "saved.json")
    assert ran.code == 2 and ran.err == "hookcli: error: explore needs Textual: pip install 'hookcli[explore]'\n"


@pytest.mark.parametrize("argv", [("gone.json",), ("gone.run.jsonl",), ("empty.run.jsonl",)])
def test_what_can_t_be_read_is_said_before_the_screen_opens(cli: Cli, opened: list[Any], argv: Sequence[str]) -> None:
    save(Path("empty.run.jsonl"), [HEADER, end()])
    ran = cli("explore", *argv)
    assert ran.code == 2 and argv[0] in ran.err and len(ran.err.splitlines()) == 1 and not opened


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["SIGTERM", *map(swept, ("SIGHUP", "SIGQUIT"))])
def test_files_are_read_and_shown_without_torch(cli: Cli, tmp_path: Path, name: str) -> None:
    record = save(tmp_path / "a.run.jsonl", [HEADER, *(recorded_step(n) for n in range(3)), end()])
    assert cli("show", str(record), "-o", str(tmp_path / "a.json"), "-f", "json").code == 0
    program = f"""
import asyncio, os, signal, sys
from hookcli.capabilities.explore import command as explore
from hookcli.cli import main
from hookcli.capabilities.explore.app import Explorer
async def use(app):
    async with app.run_test() as pilot:
        await pilot.press("down", "slash", "r", "enter", "left")
        if app._subject.steps[1:]:
            os.kill(os.getpid(), signal.{name})
            async with asyncio.timeout(60):
                while app.return_code is None:  # pilot.pause() needs a screen, which may be gone by then
                    await asyncio.sleep(0.01)
Explorer.run = lambda app: asyncio.run(use(app))
explore.is_terminal = lambda stream: True
record, saved = {str(record)!r}, {str(tmp_path / "a.json")!r}
codes = [main(["explore", name]) for name in (record, saved)]
assert codes == [128 + signal.{name}, 0], codes
assert "torch" not in sys.modules and "textual" in sys.modules
"""
    ran = forks.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, fresh=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_an_error_of_the_screen_is_told_by_the_exit_code(
    cli: Cli, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Explorer, "return_code", 1)
    save(Path("a.run.jsonl"), [HEADER, recorded_step(0), end()])
    assert cli("explore", "a.run.jsonl").code == 2

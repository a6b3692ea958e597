"""hookcli as a process: streams, exit codes, a terminal, two heavy users of stderr."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import forks

HOOKCLI = [sys.executable, "-m", "hookcli"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def in_a_terminal(*argv: str, fresh: bool = False, **environment: str) -> str:
    """What a command writes to a terminal of 80 columns that is its stdout and stderr."""
    main, side = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "50"} | environment
    with forks.Popen([*HOOKCLI, *argv], stdin=side, stdout=side, stderr=side, env=env, fresh=fresh) as process:
        os.close(side)
        said = b""
        while True:
            try:
                data = os.read(main, 65536)
            except OSError:  # how Linux says that the other side is closed
                break
            if not data:
                break
            said += data
    os.close(main)
    assert process.returncode == 0
    return said.decode()


def test_the_console_script_and_streams(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("hookcli")
    ran = forks.run([script, "models", "resnet18", "-f", "csv"], **PIPES)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("name,kind,params,input\n")
    ran = forks.run([*HOOKCLI, "shapes", "resnt"], **PIPES, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "") and ran.stderr.startswith("hookcli: error: unknown model 'resnt'")


SLOW = """
import time
from torch import nn

class Slow(nn.Identity):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return x
"""


def test_progress_shows_in_a_terminal_after_a_second_and_not_when_quiet(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    slow = ("activations", f"{tmp_path}/slow.py:Slow", "--input", "2x3")
    title = "slow.py:Slow · weights"  # of the table
    assert "Slow" in in_a_terminal(*slow, "--arg", "seconds=1.6").partition(title)[0]
    assert "Slow" not in in_a_terminal(*slow, "--arg", "seconds=1.2", "--quiet").partition(title)[0]


def test_a_terminal_gets_colour_and_its_width_and_no_color_is_heeded() -> None:
    colored = in_a_terminal("models", "resnet")
    plain = in_a_terminal("models", "resnet", NO_COLOR="1")
    assert "\x1b[" in colored and "\x1b[" not in plain
    assert max(map(len, plain.splitlines())) <= 80

"""A script under the real `python`, and under hookcli's own way to run it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import forks

ROOT = Path(__file__).parents[3]
ENV = os.environ | {"PYTHONPATH": str(ROOT)}
OURS = """
import os, sys
from hookcli.record.launching.finding import find
from hookcli.record.launching.launched import Launched, become
module = sys.argv[1] == "-m"
target, *args = sys.argv[1 + module:]
program = find(target, args, module)
launched = Launched(os.getpid(), os.devnull, False, program.name, args, {"every": 1}, quiet=True, reserved=True)
become(program.argv, launched.environment())
"""
"""`hookcli run -q`, without the command line."""
ADDRESS = re.compile(rb" at 0x[0-9a-f]+")

Outcome = tuple[int, bytes, bytes]


def under_both(*arguments: str, cwd: Path, stdin: bytes = b"", **environment: str) -> tuple[Outcome, Outcome]:
    """Exit code, stdout and stderr of `python ARGUMENTS`, and of the same run by us."""
    commands = ([sys.executable, *arguments], [sys.executable, "-c", OURS, *arguments])
    ran = [
        forks.run(command, input=stdin, capture_output=True, cwd=cwd, env=ENV | environment, fresh=True, timeout=120)
        for command in commands
    ]
    plain, ours = (
        (one.returncode, ADDRESS.sub(b" at 0x", one.stdout), ADDRESS.sub(b" at 0x", one.stderr)) for one in ran
    )
    return plain, ours

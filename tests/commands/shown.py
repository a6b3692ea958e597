"""A record made by hand."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import forks


def on_terminal(columns: int, *argv: str, both: bool = False, passing: bool = False, **environment: str) -> str:
    """The text that is left on a terminal of this width: stdout, and stderr if `both`; `passing`: all that it got."""
    ours, theirs = pty.openpty()
    process = forks.Popen(
        [sys.executable, "-m", "hookcli", *argv],
        stdout=theirs,
        stderr=theirs if both else subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": str(columns), "LINES": "50", "TERM": "xterm", **environment},
    )
    os.close(theirs)
    found = b""
    while True:
        try:
            found += os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    process.wait()
    text = found.decode().replace("\r\n", "\n")
    return text if passing else re.sub(r"[^\n]*\r\x1b\[K", "", text)

"""Runs the work on one model in a fork of this process, so that none can spoil the next one's."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def in_a_fork(work: Callable[[], dict[str, Any]], timeout: float) -> dict[str, Any]:
    """Run the work in a fork and return its result as JSON, or its `error`. Its stdout and stderr go to a file."""
    with tempfile.TemporaryDirectory() as folder:
        file, said = Path(folder, "result.json"), Path(folder, "said")
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(int(timeout))
                for stream in (1, 2):
                    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), stream)
                file.write_text(json.dumps(_tried(work)))
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not file.exists():
            return {"error": f"ended with {os.waitstatus_to_exitcode(status)}"}
        return dict(json.loads(file.read_text()))


def _tried(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except Exception as error:  # kept with the results: the sweep goes on
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"
        return {"error": said.splitlines()[0]}

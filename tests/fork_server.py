"""Runs hookcli in forks of one process that has imported torch: as a process of its own, on any streams, in no time.

A fork gets its file descriptors and Python's streams as a new `python -m hookcli` would.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forks

KINDS = ("file", "pipe", "pty", "closed", "full")
_LIMIT = 60.0  # seconds that a fork may take
_COLUMNS = 80


@dataclass(frozen=True)
class Ran:
    """`out` and `err` are what came out of each; nothing where nobody can read it."""

    code: int
    out: str
    err: str


class ForkServer:
    """In a `with` block: `run` a command line on two kinds of streams, with a spinner that appears at once.

    `whole`: with all of Python's own end, which takes a second.
    """

    def __enter__(self) -> ForkServer:
        command = [sys.executable, __file__]
        self._process = forks.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, kept=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def run(self, *argv: str, folder: Path, out: str = "file", err: str = "file", whole: bool = False) -> Ran:
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"argv": argv, "folder": str(folder), "out": out, "err": err, "whole": whole}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Ran(**json.loads(self._process.stdout.readline()))


def _serve() -> dict[str, Any] | None:
    """Fork for each job; returns it in the child, None at the end."""
    for line in sys.stdin:
        job = json.loads(line)
        sides = {name: _Side(job[name]) for name in ("out", "err")}
        pid = os.fork()
        if pid == 0:
            for number, side in enumerate(sides.values(), 1):
                side.become(number)
            return dict(job)
        code = _waited(pid, list(sides.values()))
        said = {name: side.text() for name, side in sides.items()}
        print(json.dumps({"code": code, **said}), flush=True)
    return None


class _Side:
    """One stream of a child's: `theirs` is its end, `ours` the one to read from."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.ours: int | None = None
        self.theirs: int | None = None
        self.data = b""
        if kind == "pipe":
            self.ours, self.theirs = os.pipe()
        elif kind == "broken":
            ours, self.theirs = os.pipe()
            os.close(ours)
        elif kind == "pty":
            self.ours, self.theirs = pty.openpty()
            fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, _COLUMNS, 0, 0))
        elif kind == "file":
            with tempfile.TemporaryFile() as file:
                self.theirs, self.ours = os.dup(file.fileno()), os.dup(file.fileno())
        elif kind == "full":
            self.theirs = os.open("/dev/full", os.O_WRONLY)

    def become(self, number: int) -> None:
        """In the child: be its stream of this number."""
        if self.theirs is None:
            os.close(number)
        else:
            os.dup2(self.theirs, number)
            os.close(self.theirs)
        if self.ours is not None:
            os.close(self.ours)

    def read(self) -> bool:
        """Whether there may be more."""
        assert self.ours is not None
        try:
            block = os.read(self.ours, 65536)
        except OSError:  # how Linux says that the other side of a terminal is closed
            block = b""
        self.data += block
        return bool(block)

    def text(self) -> str:
        if self.kind == "file":
            assert self.ours is not None
            os.lseek(self.ours, 0, os.SEEK_SET)
            while self.read():
                pass
        if self.ours is not None:
            os.close(self.ours)
        return self.data.decode(errors="replace")


def _waited(pid: int, sides: list[_Side]) -> int:
    for side in sides:
        if side.theirs is not None:
            os.close(side.theirs)
    open_ones = {side.ours: side for side in sides if side.ours is not None and side.kind != "file"}
    until = time.monotonic() + _LIMIT
    while open_ones and time.monotonic() < until:
        for number in select.select(list(open_ones), [], [], 1.0)[0]:
            if not open_ones[number].read():
                del open_ones[number]
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < until:
        time.sleep(0.002)
    if ended[0] == 0:
        os.kill(pid, signal.SIGKILL)
        ended = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(ended[1])


def _as_new(job: dict[str, Any]) -> None:
    """Python's own streams, as it makes them when it starts, and its arguments."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        try:
            os.fstat(number)
        except OSError:
            stream = None
        else:
            lines = number == 2 or os.isatty(number)
            stream = open(number, "w", encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            stream.reconfigure(line_buffering=lines)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(job["folder"])
    sys.argv = ["hookcli", *job["argv"]]
    sys.path.insert(0, "")


def _end(code: int) -> None:
    """What Python does at its end, without taking PyTorch apart, which takes a second: threads, exit handlers, streams.

    As CPython's `Py_FinalizeEx` and `flush_std_files` have it, with the exit code of a stream that can't be flushed.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            code = 120
    os._exit(code)


def _warm() -> None:
    """Have done once what is slow the first time: what PyTorch imports when it is first used so."""
    linear = ("torch.nn:Linear", "--arg", "in_features=4", "--arg", "out_features=3", "-i", "2x4", "-o", os.devnull)
    commands = [(name, *linear) for name in ("shapes", "grads", "graph", "trace", "check")]
    commands += [("diff", linear[0], *linear), ("package", *linear[:-2], "--extern", "**")]
    with open(os.devnull, "w") as sys.stdout:  # noqa: PTH123
        for command in commands:
            cli.main([*command, "-q", "-f", "json"])
    sys.stdout = sys.__stdout__


if __name__ == "__main__":
    import torch

    from hookcli import cli
    from hookcli.commands import progress

    torch.set_num_threads(1)
    _warm()
    gc.freeze()  # a child that collects copies no page for it
    job = _serve()
    if job is not None:
        _as_new(job)
        progress._PATIENCE, progress._TICK = 0.0, 0.02
        try:
            cli.begin()()
        except SystemExit as error:
            if job["whole"]:
                raise
            _end(int(error.code or 0))

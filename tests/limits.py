"""A time limit for each test: one that would wait for ever, such as for a process or a terminal, fails instead.

The failure says what the test has seen by then, and what its processes are doing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

SECONDS = 300.0  # ten times as long as the longest test takes on a busy machine
_SHOWN = 800  # characters of a text at most
_TESTS = Path(__file__).parent


@contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    """Let the block take so long, again and again where something drops the exception, as weak references do."""

    def over(number: int, frame: FrameType | None) -> None:
        pytest.fail("\n".join([f"this took more than {seconds:g} s", *_texts(frame), *_processes(os.getpid())]))

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _texts(frame: FrameType | None) -> Iterator[str]:
    """The texts that the functions of tests hold which are running: what came through a pipe or from a terminal."""
    while frame is not None:
        if Path(frame.f_code.co_filename).is_relative_to(_TESTS):
            for name, value in frame.f_locals.items():
                if isinstance(value, (str, bytes)):
                    yield f"{frame.f_code.co_name}, line {frame.f_lineno}: {name} = ...{value[-_SHOWN:]!r}"
        frame = frame.f_back


def _processes(parent: int) -> Iterator[str]:
    """The children of a process and theirs: their states, where the kernel has them wait, and command lines."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, owner, *_ = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if int(owner) == parent:
                command = (folder / "cmdline").read_text().replace("\0", " ")[:_SHOWN]
                yield f"process {folder.name} ({state}, {(folder / 'wchan').read_text()}): {command}"
                yield from _processes(int(folder.name))
        except OSError:  # it has ended
            continue

"""stdout is for the report alone.

While a command runs, what its model prints, and what child processes, `os.write(1, ...)` and C++ write to stdout, goes
to stderr. The report goes to the stdout that the process was given, by a descriptor that only this module knows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from hookcli.errors import UsageError
from hookcli.system import streams
from hookcli.system.streams import STDERR, STDOUT, encodable, filled, is_on, text_stream


class _Kept:
    """The stdout and stderr that were found; until `give_back`, what is written to stdout goes to stderr."""

    def __init__(self) -> None:
        out, err = self._found = sys.stdout, sys.stderr
        self._remarks = streams.remarks
        _flush(self._found)
        self._filled = filled()
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        self._copies = {number: os.dup(number) for number in (STDOUT, STDERR)}
        self.report: TextIO | None = out
        if is_on(out, STDOUT):
            self.report = None if STDOUT in self._filled else text_stream(self._copies[STDOUT], out, aside=False)
        # Not where that fails: what a model prints would fail the model.
        self._aside = self._copies[STDERR] if streams.takes(STDERR) else self._nowhere
        os.dup2(self._aside, STDOUT)
        if err is None or is_on(err, STDERR):
            streams.remarks = text_stream(self._copies[STDERR], err, aside=True)
            sys.stdout, sys.stderr = (text_stream(number, err, aside=True) for number in (STDOUT, STDERR))
        else:  # a program's or a test's own
            streams.remarks = sys.stdout = err

    def give_back(self) -> None:
        """Put all back as it was found, after what is still in buffers has gone where it belongs."""
        written = (*self._found, sys.stdout, sys.stderr)
        try:
            os.dup2(self._aside, STDOUT)  # the model may have closed it
            _flush(written)
            os.dup2(self._nowhere, STDOUT)
            _flush(written)  # what stderr does not take must not come out of stdout
        finally:
            sys.stdout, sys.stderr = self._found
            streams.remarks = self._remarks
            for number, copy in self._copies.items():
                os.dup2(copy, number)
            for number in (*self._copies.values(), self._nowhere, *self._filled):
                os.close(number)


_kept: _Kept | None = None


@contextmanager
def stdout_kept() -> Iterator[None]:
    """Keep stdout for the report while the block runs: what else is written there goes to stderr.

    Afterwards both streams, and their descriptors, are as they were found, whatever the block did to them.
    """
    global _kept
    before, _kept = _kept, _Kept()
    try:
        yield
    finally:
        kept, _kept = _kept, before
        kept.give_back()


def report_stream() -> TextIO | None:
    """The stream that the report goes to; None where stdout is closed."""
    return _kept.report if _kept else sys.stdout


def require_stdout() -> TextIO:
    """The stream that the report goes to. Raises UsageError where stdout is closed."""
    stream = report_stream()
    if stream is None or getattr(stream, "closed", False):
        raise UsageError("stdout is closed: there is nowhere to write the report")
    return stream


def write_report(text: str) -> bool:
    """Write to stdout. False where its reader has seen enough (`| head`).

    Raises UsageError where stdout is closed or takes no more.
    """
    if _kept is None:
        with stdout_kept():
            return write_report(text)
    stream = require_stdout()
    try:
        stream.write(encodable(text, stream))
        stream.flush()
    except BrokenPipeError:
        return False
    except (OSError, ValueError) as error:
        raise UsageError(f"can't write the report: {getattr(error, 'strerror', None) or error}") from error
    return True


def own_process() -> None:
    """In a process of our own, at its begin: nothing that is written to stderr can fail, nor change the exit code."""
    filled()
    if sys.stderr is None or is_on(sys.stderr, STDERR):
        sys.stderr = text_stream(STDERR, sys.stderr, aside=True)


def leave_stdout() -> None:
    """In a process of our own, at its end: what threads and exit handlers still print is not the report's."""
    _flush((sys.stdout, sys.stderr))
    os.dup2(STDERR, STDOUT)
    sys.stdout = text_stream(STDOUT, sys.stderr, aside=True)


def _flush(written: Sequence[Any]) -> None:
    """Empty Python's buffers and the C library's, as far as can be."""
    for stream in written:
        with suppress(Exception):  # any class may stand there
            stream.flush()
    if "ctypes" in sys.modules:  # torch imports it; without such libraries nothing is in C's buffers
        with suppress(Exception):
            sys.modules["ctypes"].CDLL(None).fflush(None)

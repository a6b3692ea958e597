"""Reserves stdout for the report.

While a command runs, everything that its model prints, and everything that child processes, `os.write(1, ...)` and C++
write to stdout, goes to stderr. The report goes to the process's original stdout, by a descriptor that only this module
knows.
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
    """Keeps the original stdout and stderr; until `give_back`, everything written to stdout goes to stderr."""

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
        # Where stderr fails, output is dropped: otherwise the model's prints would make the model fail.
        self._aside = self._copies[STDERR] if streams.takes(STDERR) else self._nowhere
        os.dup2(self._aside, STDOUT)
        if err is None or is_on(err, STDERR):
            streams.remarks = text_stream(self._copies[STDERR], err, aside=True)
            sys.stdout, sys.stderr = (text_stream(number, err, aside=True) for number in (STDOUT, STDERR))
        else:  # a stream of the calling program or test
            streams.remarks = sys.stdout = err

    def give_back(self) -> None:
        """Restore the streams and descriptors, after flushing all buffers to where they belong."""
        written = (*self._found, sys.stdout, sys.stderr)
        try:
            os.dup2(self._aside, STDOUT)  # the model may have closed it
            _flush(written)
            os.dup2(self._nowhere, STDOUT)
            _flush(written)  # anything that stderr did not take must not appear on stdout
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
    """Reserve stdout for the report while the block runs: all other output to it goes to stderr.

    Afterwards both streams and their descriptors are restored, whatever the block did to them.
    """
    global _kept
    before, _kept = _kept, _Kept()
    try:
        yield
    finally:
        kept, _kept = _kept, before
        kept.give_back()


def report_stream() -> TextIO | None:
    """Return the stream that the report goes to; None if stdout is closed."""
    return _kept.report if _kept else sys.stdout


def require_stdout() -> TextIO:
    """Return the stream that the report goes to. Raises UsageError if stdout is closed."""
    stream = report_stream()
    if stream is None or getattr(stream, "closed", False):
        raise UsageError("stdout is closed: there is nowhere to write the report")
    return stream


def write_report(text: str) -> bool:
    """Write to stdout. Returns False if the reader has closed the pipe (`| head`).

    Raises UsageError if stdout is closed or full.
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
    """Call at the start of a process of hookcli's own: writing to stderr can no longer fail or change the exit code."""
    filled()
    if sys.stderr is None or is_on(sys.stderr, STDERR):
        sys.stderr = text_stream(STDERR, sys.stderr, aside=True)


def leave_stdout() -> None:
    """Call at the end of a process of hookcli's own: output of threads and exit handlers goes to stderr."""
    _flush((sys.stdout, sys.stderr))
    os.dup2(STDERR, STDOUT)
    sys.stdout = text_stream(STDOUT, sys.stderr, aside=True)


def _flush(written: Sequence[Any]) -> None:
    """Flush Python's buffers and the C library's, ignoring errors."""
    for stream in written:
        with suppress(Exception):  # a stream may be of any class
            stream.flush()
    if "ctypes" in sys.modules:  # torch imports it; without such libraries nothing is in C's buffers
        with suppress(Exception):
            sys.modules["ctypes"].CDLL(None).fflush(None)

"""Remarks on stderr, which can never fail a command: it may be closed, full, or a pipe that nobody reads."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from hookcli.system.escaping import visible

STDOUT, STDERR = 1, 2
_PATIENCE = 1.0  # seconds in which a pipe that does not block must take something of a remark
_CLEAR = b"\r\x1b[K"  # the line that the cursor is on
_shown = False  # whether a status line is
remarks: TextIO | None = None
"""The stderr that a command was given, while it runs: a model may replace or close its own."""


class Descriptor(io.RawIOBase):
    """Writes to a file descriptor all that it is given; `aside` drops what the descriptor does not take."""

    def __init__(self, number: int, *, aside: bool) -> None:
        self._number = number
        self._aside = aside
        self.name = "<stderr>" if number == STDERR else "<stdout>"

    def writable(self) -> bool:
        """Return True, as an output stream must."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._number

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._number)

    def write(self, data: Any) -> int:
        """Write all of the data; with `aside`, as much as the descriptor takes."""
        if not self._aside:
            _write_all(self._number, bytes(data), None)
        else:
            with suppress(OSError):
                _write_all(self._number, _cleared() + bytes(data), _PATIENCE)
        return len(data)


def text_stream(number: int, like: Any, *, aside: bool) -> TextIO:
    """A stream on a descriptor, of another's encoding, which keeps nothing back that could fail when Python ends."""
    raw: Any = Descriptor(number, aside=aside)
    encoding = getattr(like, "encoding", None) or "utf-8"
    return io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)


def is_on(stream: Any, number: int) -> bool:
    """Whether a stream writes to this descriptor, and is no class of its own (a notebook's) that does more."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == number
    except (OSError, ValueError):
        return False


def say(text: str, stream: TextIO | None = None) -> None:
    r"""Say something on stderr, or on this stream, safely.

    Control characters of names that it quotes are shown as such. A further line of our own begins with two spaces; any
    other line break is shown as `\n`.
    """
    aside("hookcli: " + "\n  ".join(visible(line) for line in text.split("\n  ")) + "\n", stream)


def aside(text: str, stream: TextIO | None = None) -> None:
    """Write to stderr, or to this stream, what is fit to be shown as it is. Never fails.

    Nothing stays in the stream's buffer: there it would fail again when Python ends, and change the exit code.
    """
    stream = stream or remarks or sys.stderr
    with suppress(Exception):  # any class may stand there
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):
                number = stream.fileno()
                with suppress(OSError):
                    stream.flush()
                Descriptor(number, aside=True).write(text.encode(stream.encoding, "backslashreplace"))
                return
        if stream is not None:
            stream.write(encodable(text, stream))
            stream.flush()


@contextmanager
def remarks_on(stream: TextIO) -> Iterator[None]:
    """Say what is said while the block runs on this stream."""
    global remarks
    before, remarks = remarks, stream
    try:
        yield
    finally:
        remarks = before


def show_status(text: str) -> None:
    """Show a line on the terminal behind stderr, until something else is written there; "" takes it away."""
    global _shown
    stream: Any = remarks or sys.stderr
    with suppress(OSError, ValueError):
        line = text.encode(stream.encoding, "replace")
        _write_all(stream.fileno(), _CLEAR + line if line else _cleared(), 0)
        _shown = bool(line)


def shows_status() -> bool:
    """Whether stderr is a terminal that can take a line away."""
    stream = remarks or sys.stderr
    return isinstance(stream, io.TextIOWrapper) and is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads what is written there."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def terminal_size(stream: TextIO | None) -> os.terminal_size:
    """Columns and lines of the terminal behind a stream; COLUMNS and LINES overrule it, as everywhere."""
    found = os.terminal_size((0, 0))
    with suppress(OSError, ValueError):
        found = os.get_terminal_size(stream.fileno()) if stream is not None else found
    given = [os.environ.get(name, "") for name in ("COLUMNS", "LINES")]
    columns, lines = (int(text[:5]) if text.isdecimal() else 0 for text in given)
    return os.terminal_size((columns or found.columns or 80, lines or found.lines or 24))


def encodable(text: str, stream: Any) -> str:
    """As much of a text as a stream takes: an encoding without box characters costs a few question marks."""
    text = text.encode("utf-8", "backslashreplace").decode()
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text if encoding.lower().startswith("utf") else text.encode(encoding, "replace").decode(encoding)


def filled() -> set[int]:
    """Open the null device by the standard numbers that are closed, so that no other file gets them. Returns these."""
    numbers = set()
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        numbers.add(number)
        os.set_inheritable(number, True)
    os.close(number)
    return numbers


def takes(number: int) -> bool:
    """Whether a descriptor takes what is written, as far as can be known before: not on a full disk or device, nor into
    a pipe that nobody reads."""
    try:
        found = os.fstat(number)
        if stat.S_ISREG(found.st_mode):
            return os.fstatvfs(number).f_bavail > 0
        if stat.S_ISCHR(found.st_mode):
            return not Path("/dev/full").exists() or found.st_rdev != Path("/dev/full").stat().st_rdev
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        return not any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
    except OSError:
        return False


def above_standard(number: int) -> int:
    """The same open file by a number that is not a standard stream's, which a file gets where that stream is closed:
    what others write to it would land in the file."""
    if number > STDERR:
        return number
    above = above_standard(os.dup(number))
    os.close(number)
    return above


def _write_all(number: int, data: bytes, patience: float | None) -> None:
    """Write it, also where the descriptor is one that does not block, as those of some CI systems are."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(number, rest) :]
        except BlockingIOError:
            if not select.select([], [number], [], patience)[1]:
                raise


def _cleared() -> bytes:
    """What takes the status line away, where there is one."""
    global _shown
    shown, _shown = _shown, False
    return _CLEAR if shown else b""

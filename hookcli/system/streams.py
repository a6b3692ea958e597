"""Writes remarks to stderr, which may be closed, full, or a pipe without a reader: a command never fails for that."""

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

from hookcli.system.escaping import visible, wrapped

STDOUT, STDERR = 1, 2
_PATIENCE = 1.0  # seconds to wait for a non-blocking pipe to take more of a remark
_CLEAR = b"\r\x1b[K"  # clears the cursor's line
_shown = False  # whether a status line is shown
_shared = False  # whether another process may show one at any time
remarks: TextIO | None = None
"""The process's original stderr while a command runs; a model may replace or close `sys.stderr`."""


class Descriptor(io.RawIOBase):
    """A raw stream on a file descriptor, which writes everything; `aside` drops what the descriptor does not take."""

    def __init__(self, number: int, *, aside: bool) -> None:
        self._number = number
        self._aside = aside
        self.name = "<stderr>" if number == STDERR else "<stdout>"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Any) -> int:
        """Write all of the data; with `aside`, as much as the descriptor takes."""
        if not self._aside:
            _write_all(self._number, bytes(data), None)
        else:
            with suppress(OSError):
                _write_all(self._number, _cleared() + bytes(data), _PATIENCE)
        return len(data)


def text_stream(number: int, like: object, *, aside: bool) -> TextIO:
    """Make a text stream on a descriptor with the encoding of `like`; its buffer is never left to fail at exit."""
    raw: Any = Descriptor(number, aside=aside)
    encoding = getattr(like, "encoding", None) or "utf-8"
    return io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)


def is_on(stream: object, number: int) -> bool:
    """Return whether a stream writes to this descriptor, and to nothing else as a notebook's stream does."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == number
    except (OSError, ValueError):
        return False


def say(text: str, stream: TextIO | None = None) -> None:
    r"""Write a remark to stderr, or to this stream.

    Control characters in quoted names are escaped. Further lines of a remark begin with two spaces; any other line
    break is shown as `\n`. On a terminal, lines that do not fit are broken at spaces.
    """
    stream = stream or remarks or sys.stderr
    width = terminal_size(stream).columns if is_terminal(stream) else None
    text = "hookcli: " + "\n  ".join(visible(line) for line in text.split("\n  "))
    aside(f"{wrapped(text, width)}\n", stream)


def aside(text: str, stream: TextIO | None = None) -> None:
    """Write text that needs no escaping to stderr, or to this stream. Never fails.

    Nothing stays in the stream's buffer, where it would fail again at exit and change the exit code.
    """
    stream = stream or remarks or sys.stderr
    with suppress(Exception):  # a stream may be of any class
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
    """Write remarks to this stream while the block runs."""
    global remarks
    before, remarks = remarks, stream
    try:
        yield
    finally:
        remarks = before


def show_status(text: str) -> None:
    """Show a status line on stderr's terminal until something else is written there; "" clears it."""
    global _shown
    stream: Any = remarks or sys.stderr
    with suppress(OSError, ValueError):
        line = text.encode(stream.encoding, "replace")
        _write_all(stream.fileno(), _CLEAR + line if line else _cleared(), 0)
        _shown = bool(line)


def share_terminal() -> None:
    """From now on, clear the line in the same write as each remark: another process shows its status meanwhile."""
    global _shared
    _shared = shows_status()


def clear_status_of_others() -> None:
    """Clear the status line that another process of the same run may show on the terminal, and may have left there."""
    global _shown
    _shown = shows_status()
    show_status("")


def shows_status() -> bool:
    """Return whether stderr is a terminal that can clear a line."""
    stream = remarks or sys.stderr
    return isinstance(stream, io.TextIOWrapper) and is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal."""
    try:
        return stream is not None and stream.isatty()
    except Exception:  # a stream may be of any class
        return False


def takes_color(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal that shows colours, which NO_COLOR refuses."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def piped_width(stream: TextIO | None) -> int | None:
    """Return the columns of the terminal that shows what a pipe's other end makes of the text, as `| head` does.

    None for a file, and where neither stderr nor stdin, which are not piped, is a terminal.
    """
    with suppress(Exception):  # a stream may be of any class
        shown = next(filter(is_terminal, (remarks or sys.stderr, sys.stdin)), None)
        if stream is not None and stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode) and shown:
            return terminal_size(shown).columns
    return None


def terminal_size(stream: TextIO | None) -> os.terminal_size:
    """Return the columns and lines of a stream's terminal; COLUMNS and LINES override them, as is customary."""
    size = os.terminal_size((0, 0))
    with suppress(Exception):
        size = os.get_terminal_size(stream.fileno()) if stream is not None else size
    return os.terminal_size((asked("COLUMNS") or size.columns or 80, asked("LINES") or size.lines or 24))


def asked(name: str) -> int:
    """Return the number of columns or lines that COLUMNS or LINES asks for; 0 if it doesn't."""
    text = os.environ.get(name, "")
    return int(text[:5]) if text.isdecimal() else 0


def encodable(text: str, stream: object) -> str:
    """Return the text with question marks in place of characters that the stream can't encode."""
    text = text.encode("utf-8", "backslashreplace").decode()
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text if encoding.lower().startswith("utf") else text.encode(encoding, "replace").decode(encoding)


def filled() -> set[int]:
    """Open the null device on closed standard descriptors, so that no other file gets them. Returns their numbers."""
    numbers = set()
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        numbers.add(number)
        os.set_inheritable(number, True)
    os.close(number)
    return numbers


def takes(number: int) -> bool:
    """Return whether a descriptor can be written to, as far as is known (disk not full, pipe has a reader)."""
    try:
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            return os.fstatvfs(number).f_bavail > 0
        if stat.S_ISCHR(status.st_mode):
            return not Path("/dev/full").exists() or status.st_rdev != Path("/dev/full").stat().st_rdev
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        return not any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
    except OSError:
        return False


def above_standard(number: int) -> int:
    """Return a descriptor of the same file above the standard ones.

    A file gets a standard number if that stream is closed, and output to the stream would then land in the file.
    """
    if number > STDERR:
        return number
    above = above_standard(os.dup(number))
    os.close(number)
    return above


def _write_all(number: int, data: bytes, patience: float | None) -> None:
    """Write all of the data, waiting where the descriptor is non-blocking, as on some CI systems."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(number, rest) :]
        except BlockingIOError:
            if not select.select([], [number], [], patience)[1]:
                raise


def _cleared() -> bytes:
    """Return the bytes that clear the status line; none if no line can be shown."""
    global _shown
    shown, _shown = _shown, False
    return _CLEAR if shown or _shared else b""


@contextmanager
def logged_from(level: int, name: str) -> Iterator[None]:
    """Keep messages below this level of Python's logger `name` out of the logs for the block."""
    from logging import getLogger  # few commands need it

    logger = getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)

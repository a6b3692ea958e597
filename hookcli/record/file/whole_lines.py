"""Reads the lines of a file that may still be written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from hookcli.system.files import LARGEST, too_large


def whole_lines(file: BinaryIO, last: bool = False) -> Iterator[tuple[int, bytes]]:
    """The lines from the current position on, each with its offset.

    An incomplete last line, which may still be written, is returned only with `last`; else the file is put back before
    it.
    """
    offset = file.tell()
    for text in iter(partial(whole_line, file), b""):
        if not (last or text.endswith(b"\n")):
            file.seek(offset)
            return
        yield offset, text
        offset += len(text)


def whole_line(file: BinaryIO) -> bytes:
    """The next line. Raises OSError for one without an end, as a file of zeros has."""
    text = file.readline(LARGEST)
    if len(text) == LARGEST:
        raise too_large(LARGEST)
    return text

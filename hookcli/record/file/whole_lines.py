"""Reads the lines of a file that may still be written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO


def whole_lines(file: BinaryIO, last: bool = False) -> Iterator[tuple[int, bytes]]:
    """The lines from the current position on, each with its offset.

    An incomplete last line, which may still be written, is returned only with `last`; else the file is put back before
    it.
    """
    offset = file.tell()
    for text in iter(file.readline, b""):
        if not (last or text.endswith(b"\n")):
            file.seek(offset)
            return
        yield offset, text
        offset += len(text)

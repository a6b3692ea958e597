"""Drops what a thread prints while hookcli runs the program's code for itself."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from threading import get_ident
from typing import TextIO


class Unheard(io.TextIOBase):
    """A stream to which what this thread prints is lost; others print to `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread = stream, get_ident()

    def write(self, text: str) -> int:
        return len(text) if get_ident() == self._thread else self._stream.write(text)


def unheard() -> redirect_stdout[Unheard]:
    """A block in which what this thread prints to stdout is lost."""
    return redirect_stdout(Unheard(sys.stdout))

"""A record that is still being written, line by line as they come."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from hookcli.record.file.reading import Record, whole_lines


class Tail:
    """Follows a file, also one that is not there yet, or that a new run replaces while it is followed.

    `record` holds what came until now, an empty record at first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = Record(path)
        self._file: BinaryIO | None = None

    def poll(self) -> bool:
        """Take in what was written since the last time; whether there was anything."""
        if self._file is None or self._is_replaced():
            self._open()
        before = self.record.lines
        if self._file is not None:
            for offset, text in whole_lines(self._file):
                self.record.add(offset, text)
        return self.record.lines > before

    def changed(self) -> float | None:
        """When the file was last written to, in seconds since the epoch."""
        with suppress(OSError):
            return self.path.stat().st_mtime
        return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> None:
        self.close()
        self._file = None
        with suppress(FileNotFoundError):
            self._file = self.path.open("rb")
            self.record = Record(self.path)

    def _is_replaced(self) -> bool:
        """Whether the name is another file's by now, or the file was emptied. A file that was deleted is still ours."""
        assert self._file is not None
        own = os.fstat(self._file.fileno())
        with suppress(OSError):
            now = self.path.stat()
            return (now.st_dev, now.st_ino) != (own.st_dev, own.st_ino) or now.st_size < self._file.tell()
        return False

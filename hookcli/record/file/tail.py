"""Follows a record while it is being written."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from hookcli.errors import UsageError
from hookcli.record.file.reading import Record
from hookcli.record.file.whole_lines import whole_lines
from hookcli.system.files import opened


class Tail:
    """Follows a file, even if it does not exist yet or a new run replaces it.

    `record` holds the lines so far; it is empty at first.
    """

    def __init__(self, path: Path, within: Path | None = None) -> None:
        self.path = path
        self.record = Record(path, within=within)
        self._file: BinaryIO | None = None

    def poll(self) -> bool:
        """Read the lines written since the last call. Returns whether there were any. Raises UsageError."""
        if self._file is None or self._is_replaced():
            self._open()
        before = self.record.lines
        if self._file is not None:
            for offset, text in whole_lines(self._file):
                self.record.add(offset, text)
        return self.record.lines > before

    def changed(self) -> float | None:
        """Time of the last write to the file, in seconds since the epoch."""
        with suppress(OSError):
            return self.path.stat().st_mtime
        return None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> None:
        self.close()
        self._file = None
        within = self.record.within
        try:
            self._file = opened(self.path, within)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"{self.path}: can't be read as a record ({error.strerror})") from error
        self.record = Record(self.path, within=within)

    def _is_replaced(self) -> bool:
        """True if the path names another file by now, or the file was truncated. A deleted file is not replaced."""
        assert self._file is not None
        own = os.fstat(self._file.fileno())
        with suppress(OSError):
            now = self.path.stat()
            return (now.st_dev, now.st_ino) != (own.st_dev, own.st_ino) or now.st_size < self._file.tell()
        return False

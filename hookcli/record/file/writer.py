"""Writes a record a line at a time, so that nothing that ends the process spoils what is there."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from hookcli.record.file.record import Line
from hookcli.system.streams import above_standard


class RecordWriter:
    """Appends lines to a file, nothing in memory: each goes to the system in one write.

    `path` is absolute, since scripts change their working directory; the file stays open, so that it takes lines also
    after its folder was renamed or deleted. A file that is there already is replaced, with `new` it is an error. A
    child of a fork shares the file but writes nothing. Raises OSError where the file can't be made or takes no more;
    what was written then of a line is ended before the next one, so that it spoils no other. Once it does where someone
    else has closed the file, whose number may be that of a file of theirs by now; lines after that are dropped.
    """

    def __init__(self, path: str | Path, *, new: bool = False) -> None:
        self.path = Path(path).absolute()
        how = os.O_EXCL if new else os.O_TRUNC
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | how, 0o666)
        self._file: int | None = above_standard(file)
        self._opened = _identity(self._file)
        self._cut = False
        self._process = os.getpid()

    @classmethod
    def numbered(cls, folder: str | Path, stem: str) -> Self:
        """`STEM.run.jsonl` in the folder, or `STEM-2.run.jsonl` and on where that is taken, also at this moment."""
        number, name = 1, f"{stem}.run.jsonl"
        while True:
            try:
                return cls(Path(folder, name), new=True)
            except FileExistsError:
                number += 1
                name = f"{stem}-{number}.run.jsonl"

    def write(self, line: Line) -> None:
        """Append a line. Raises OSError (disk full); the next may fit again."""
        if self._file is None or os.getpid() != self._process:
            return
        # ASCII: arguments that are not UTF-8 are surrogates, which JSON can escape and UTF-8 can't hold.
        text = json.dumps(line.to_dict(), allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
        self._check(self._file)
        rest = memoryview(b"\n" + text if self._cut else text)
        while rest:  # one write takes all, unless the disk is full, which the next says
            rest = rest[os.write(self._file, rest) :]
            self._cut = bool(rest)

    def close(self) -> None:
        """Close the file, if it is still ours; lines after that are dropped."""
        if self._file is not None:
            with suppress(OSError):
                self._check(self._file)
                os.close(self._file)
            self._file = None

    def remove(self) -> bool:
        """Close the file, and take it away, if it is still ours and where it was made. Returns whether it is gone."""
        if self._file is None or os.getpid() != self._process:
            return False
        self.close()
        with suppress(OSError):
            if _inode(self.path.stat()) == self._opened:
                self.path.unlink()
                return True
        return False

    def _check(self, file: int) -> None:
        if _identity(file) != self._opened:
            self._file = None
            raise OSError(errno.EBADF, "the program has closed it")


def _identity(file: int) -> tuple[int, int] | None:
    """Of an open file: device and inode. None where it is not open."""
    try:
        return _inode(os.fstat(file))
    except OSError:
        return None


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino

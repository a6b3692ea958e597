"""Writes a record line by line, so that whatever ends the process leaves the lines before it whole."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from hookcli.record.file.packing import Packer
from hookcli.record.file.record_lines import LAYOUT, Header, Line, RecordedStep
from hookcli.system.streams import above_standard


class RecordWriter:
    """Appends lines to a file, each with one write and without a buffer.

    `path` is absolute, since scripts change their working directory. The file stays open, so writing still works after
    its folder is renamed or deleted. An existing file is replaced, or continued without `replace`; with `new` it is an
    error. A forked child shares the file but writes nothing. Raises OSError if the file can't be created or can take no
    more; a line that was cut off is terminated before the next one. Raises OSError once if the program has closed the
    file, whose descriptor may belong to another file by now; later lines are dropped.
    """

    def __init__(self, path: str | Path, *, new: bool = False, replace: bool = True) -> None:
        self.path = Path(path).absolute()
        how = os.O_EXCL if new else os.O_TRUNC if replace else 0
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | how, 0o666)
        self._file: int | None = above_standard(file)
        self._opened = _identity(self._file)
        self._cut = False
        self._whole = 0
        self._process = os.getpid()
        self._packer = Packer()
        self._lock = threading.RLock()  # a layout's line comes before the steps that refer to it

    def begun(self, header: Header) -> Self:
        """Write the header. Raises OSError, and removes the file, if it can't take that."""
        try:
            self.write(header)
        except OSError:
            self.remove()
            raise
        return self

    def write(self, line: Line) -> None:
        """Append a line. Raises OSError if the disk is full; the next line may fit again."""
        if self._file is None or os.getpid() != self._process:
            return
        with self._lock:
            if not isinstance(line, RecordedStep):
                self._append(line.to_dict())
                return
            try:
                layouts, reports = self._packer.pack(line.reports)
                for number, layout in layouts.items():
                    self._append({"line": LAYOUT, "id": number, "layout": layout})
            except BaseException:
                self._packer.forget()
                raise
            self._append(line.to_dict(packed=reports))

    def _append(self, data: Mapping[str, object]) -> None:
        if self._file is None:
            return
        # ASCII: arguments that are not UTF-8 contain surrogates, which JSON can escape and UTF-8 can't encode.
        text = json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
        self._check(self._file)
        if not self._cut:
            self._whole = os.fstat(self._file).st_size
        rest = memoryview(b"\n" + text if self._cut else text)
        while rest:  # one write takes all, unless the disk is full; then the next one raises
            rest = rest[os.write(self._file, rest) :]
            self._cut = bool(rest)

    def cut_back(self) -> bool:
        """Drop a line that was cut off, whose room a shorter one may take. Returns whether the file is still open."""
        if self._file is not None and self._cut and os.getpid() == self._process:
            with suppress(OSError):
                os.ftruncate(self._file, self._whole)
                self._cut = False
        return self._file is not None

    @property
    def in_place(self) -> bool:
        """False if the file was deleted or replaced: its path leads to another, or to none."""
        with suppress(OSError):
            status = self.path.stat()
            return not stat.S_ISREG(status.st_mode) or _inode(status) == self._opened
        return False

    def close(self) -> None:
        """Close the file, unless the program has; later lines are dropped."""
        if self._file is not None:
            with suppress(OSError):
                self._check(self._file)
                os.close(self._file)
            self._file = None

    def remove(self) -> bool:
        """Close and delete the file, if it is open, at its path, and no device. Returns whether it was deleted."""
        if self._file is None or os.getpid() != self._process:
            return False
        self.close()
        with suppress(OSError):
            if self.path.is_file() and _inode(self.path.stat()) == self._opened:
                self.path.unlink()
                return True
        return False

    def _check(self, file: int) -> None:
        if _identity(file) != self._opened:
            self._file = None
            raise OSError(errno.EBADF, "the program has closed the file")


def _identity(file: int) -> tuple[int, int] | None:
    """Device and inode of an open file; None if it is not open."""
    try:
        return _inode(os.fstat(file))
    except OSError:
        return None


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino

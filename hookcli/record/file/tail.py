"""Follows a record while it is being written: a file, or the parts of several ranks."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from hookcli.errors import UsageError
from hookcli.record.file.parsing import whole_lines
from hookcli.record.file.ranks.ranked_record import RankedRecord, folder_of, no_parts, part_files
from hookcli.record.file.reading import Record
from hookcli.system.files import exists, is_folder, opened


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
        replaced = self._file is None
        if self._file is not None:
            own = os.fstat(self._file.fileno())
            with suppress(OSError):  # a deleted file is not replaced
                now = self.path.stat()
                cut = now.st_size < self._file.tell()
                replaced = (now.st_dev, now.st_ino) != (own.st_dev, own.st_ino) or cut
        if replaced:
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


class RankedTail(Tail):
    """Follows the parts in a folder; a step is there once no rank can add to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._parts: dict[int, Tail] = {}

    def poll(self) -> bool:
        """Read the lines written since the last call. Returns whether there were any."""
        for rank, path in part_files(self.path).items() if is_folder(self.path) else ():
            self._parts.setdefault(rank, Tail(path, self.path))
        grown = [part.poll() for part in self._parts.values()]
        if not any(grown):
            return False
        parts = {rank: part.record for rank, part in self._parts.items() if part.record.lines}
        known = self.record.parts if isinstance(self.record, RankedRecord) else None
        if known is None or any(parts.get(rank) is not record for rank, record in known.items()):  # a new run
            self.record = RankedRecord(self.path)
        assert isinstance(self.record, RankedRecord)
        self.record.parts = parts
        self.record.leave_out_earlier()
        self.record.join(growing=True)
        return True

    def changed(self) -> float | None:
        """Time of the last write to a part, in seconds since the epoch."""
        return max((when for part in self._parts.values() if (when := part.changed()) is not None), default=None)

    def close(self) -> None:
        """Close the files."""
        for part in self._parts.values():
            part.close()


def tail_of(path: Path) -> Tail:
    """Follow a file or a folder, also one that does not exist yet. Raises UsageError for a folder of other things."""
    if is_folder(path) and path.suffix != ".run" and not part_files(path):
        raise UsageError(f"{path}: {no_parts(path)}")
    folder = folder_of(path) or (path if not exists(path) and path.suffix == ".run" else None)
    return RankedTail(folder) if folder else Tail(path)

"""Names the files of one run's record: a file, or a folder with one part for each process that trains.

    train.run.jsonl             a program that trains in one process
    train.run/rank0.jsonl       each rank of a launcher (torchrun, WORLD_SIZE > 1); there is no train.run.jsonl then
    train.run/child-4711.jsonl  a child that trains (fork, spawn), by its process id, beside the program's own file

`hookcli run` reserves `train.run.jsonl` as an empty file before the program starts. So all processes of the run know
its name and the folder's, and another run takes `train-2.run.jsonl` and `train-2.run/`. A process opens its part when
it has something to write; processes that only load data or start others leave none. The first program takes the
reserved file. Another program of the same run (a shell script that trains twice) has a record of its own, numbered:
no process replaces another's part, and a child of a rank is a child, though it inherits the rank's variables.
Ranks delete the reserved file once the folder exists, and the program deletes it at its end if it is still empty.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Self

from hookcli.record.file.record_lines import Header
from hookcli.record.file.writer import RecordWriter
from hookcli.system.streams import takes
from hookcli.system.torchrun import joined_world

_SUFFIX = ".jsonl"
_PART = re.compile(r"(rank\d+|child-\d+(-\d+)?)\.jsonl")


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """The files of one run's record. `record` is the absolute path of the program's own file."""

    record: Path

    @classmethod
    def reserved(cls, folder: Path, stem: str) -> Self:
        """Reserve `STEM.run.jsonl` in the folder, or a numbered name if it or its folder is taken. Raises OSError."""
        number, name = 1, f"{stem}.run{_SUFFIX}"
        while True:
            found = cls(folder.absolute() / name)
            with suppress(FileExistsError):
                os.close(os.open(found.record, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                if not found.folder.exists():
                    return found
                found.release()
            number += 1
            name = f"{stem}-{number}.run{_SUFFIX}"

    @classmethod
    def named(cls, path: str) -> Self:
        """Reserve this very path: empty an existing file, and delete an earlier run's parts in the folder.

        Raises OSError if it can't be written.
        """
        found = cls(Path(path).absolute())
        if not (found.record.exists() and stat.S_ISFIFO(found.record.stat().st_mode)):  # its reader would see an end
            file = os.open(found.record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            full = not takes(file)
            os.close(file)
            if full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for part in found.parts():
            if _PART.fullmatch(part.name):  # else not of a record, and so the user's own
                part.unlink()
        return found

    @property
    def folder(self) -> Path:
        """The folder of parts: the record's name without `.jsonl`."""
        name = self.record.name
        return self.record.with_name(name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else f"{name}.parts")

    @property
    def stem(self) -> str:
        """The record's name without its suffixes, which numbered names begin with."""
        return self.record.name.removesuffix(_SUFFIX).removesuffix(".run")

    @property
    def untaken(self) -> bool:
        """True if the reserved file is still there and empty."""
        try:
            return self.record.stat().st_size == 0
        except OSError:
            return False

    def parts(self) -> list[Path]:
        """The parts in the folder, ranks by number first."""
        return sorted(
            self.folder.glob(f"*{_SUFFIX}"), key=lambda path: (path.name[:1] != "r", len(path.name), path.name)
        )

    def take(self, header: Header) -> RecordWriter:
        """Open the program's own file and write its header; a numbered one if another program has taken it.

        Raises OSError if it can't be written.
        """
        with self._reserved(os.O_CREAT) as still:
            if still:
                return RecordWriter(self.record, replace=False).begun(header)
        return RecordWriter.numbered(self.record.parent, self.stem).begun(header)

    def rank(self, number: int, header: Header) -> RecordWriter:
        """Open the part of a rank and write its header, which says which rank it is; the reserved file goes.

        Raises OSError; FileExistsError if another process has that part.
        """
        header = replace(header, rank=number, ranks=max(joined_world().size, number + 1))
        writer = self._part(f"rank{number}", header)
        self.release()
        return writer

    def child(self, process: int, header: Header) -> RecordWriter:
        """Open the part of a child process, numbered if another had its id, and write its header. Raises OSError."""
        for number in count(1):
            with suppress(FileExistsError):
                return self._part(f"child-{process}-{number}" if number > 1 else f"child-{process}", header)
        raise AssertionError

    def _part(self, name: str, header: Header) -> RecordWriter:
        self.folder.mkdir(exist_ok=True)
        return RecordWriter(self.folder / f"{name}{_SUFFIX}", new=True).begun(header)

    def release(self) -> bool:
        """Delete the reserved file if no program has taken it. Returns whether it was deleted."""
        with suppress(OSError), self._reserved() as still:
            if still and stat.S_ISREG(self.record.stat().st_mode):
                self.record.unlink()
                return True
        return False

    @contextmanager
    def _reserved(self, create: int = 0) -> Iterator[bool]:
        """Tell whether the program's file is still empty, and keep other processes of the run from taking it."""
        file = os.open(self.record, os.O_WRONLY | os.O_APPEND | create, 0o666)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            found = os.fstat(file)
            yield found.st_size == 0 and self.record.exists() and os.path.samestat(found, self.record.stat())
        finally:
            os.close(file)

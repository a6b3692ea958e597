"""Names the files of one run's record: a file, or a folder with one part for each process that trains.

    train.run.jsonl             a program that trains in one process
    train.run/rank0.jsonl       each rank of a launcher (torchrun, WORLD_SIZE > 1); there is no train.run.jsonl then
    train.run/child-4711.jsonl  a child that trains (fork, spawn), by its process id, beside the program's own file

A file and its folder belong to one launch: a program with its children, or the ranks that one launcher started, with
theirs. The header of the file says which, and a note in the folder. A process opens its part when it has something to
write, and takes the first name that is free or that its own launch has taken: another program of the same run (a shell
script that trains twice), a second torchrun, and restarted ranks get other, numbered records.

`hookcli run` reserves the name of a script's record with an empty file, which ranks delete once the folder exists, and
the program at its end if it is still empty. For a command, which may start no Python, it only picks the name, unless
the process that exports the record (`--live`) can delete the file in the end.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from hookcli.system.files import content, opened
from hookcli.system.streams import takes
from hookcli.system.torchrun import joined_world

if TYPE_CHECKING:  # `hookcli run` only reserves a name; reports take as long to import as Python to start
    from hookcli.record.file.record_lines import Header
    from hookcli.record.file.writer import RecordWriter

NOTE = ".run"
ANY_NOTE = re.compile(r"\.run(-[0-9a-f]{32})?")
"""The names of the note, and of one whose writer was killed."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_SUFFIX = ".jsonl"
_PART = re.compile(r"(rank\d+|child-\d+(-\d+)?)\.jsonl")


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """The files of one run's record. `record` is the absolute path of the program's own file.

    `launch` names the launch on whose behalf files are opened. An empty file is this run's if it is `reserved`, else
    another's.
    """

    record: Path
    launch: str = ""
    reserved: bool = False

    @classmethod
    def reserve(cls, folder: Path, stem: str) -> Self:
        """Reserve `STEM.run.jsonl` in the folder, or a numbered name if it or its folder is taken. Raises OSError."""
        for files in cls(folder.absolute() / f"{stem}.run{_SUFFIX}").names():
            with suppress(FileExistsError):
                os.close(os.open(files.record, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                reserved = replace(files, reserved=True)
                if not reserved.folder.exists():
                    return reserved
                reserved.release()
        raise AssertionError

    @classmethod
    def named(cls, path: str) -> Self:
        """Reserve this very path: empty an existing file, and delete an earlier run's parts in the folder.

        Raises OSError if it can't be written.
        """
        files = cls(Path(path).absolute(), reserved=True)
        if not (files.record.exists() and stat.S_ISFIFO(files.record.stat().st_mode)):  # its reader would see an end
            file = os.open(files.record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            full = not takes(file)
            os.close(file)
            if full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        earlier = [*files.parts(), *(one for one in files.folder.glob("*") if ANY_NOTE.fullmatch(one.name))]
        for one in earlier:
            one.unlink()
        with suppress(OSError):  # it holds files of the user's
            if earlier:
                files.folder.rmdir()
        return files

    @property
    def folder(self) -> Path:
        """The folder of parts: the record's name without `.jsonl`."""
        name = self.record.name
        return self.record.with_name(name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else f"{name}.parts")

    @property
    def untaken(self) -> bool:
        """True if nothing is recorded under this name but by children."""
        with suppress(OSError):
            if self.record.stat().st_size:
                return False
        return not any(part.name.startswith("rank") for part in self.parts())

    def parts(self) -> list[Path]:
        """The parts in the folder, ranks by number first. Other files there are the user's own."""
        return sorted(
            (path for path in self.folder.glob(f"*{_SUFFIX}") if _PART.fullmatch(path.name)),
            key=lambda path: (path.name[:1] != "r", len(path.name), path.name),
        )

    def of_launch(self) -> Self | None:
        """The files whose folder is this launch's, if it has one."""
        for files in self.names():
            if noted(files.folder) == self.launch:
                return files
            if not (files.record.exists() or files.folder.exists()):
                return None
        raise AssertionError

    def take(self, header: Header) -> RecordWriter:
        """Open the program's own file and write its header; a numbered one if another launch has taken it.

        Raises OSError if it can't be written.
        """
        header = replace(header, launch=self.launch)
        for files in self.names():
            with (
                suppress(FileExistsError),
                files.locked(os.O_CREAT if files.reserved else os.O_CREAT | os.O_EXCL) as free,
            ):
                if free and noted(files.folder) in (None, self.launch):
                    from hookcli.record.file.writer import RecordWriter

                    return RecordWriter(files.record, replace=False).begun(header)
                if free:
                    files.delete_reserved()
        raise AssertionError

    def rank(self, number: int, header: Header) -> RecordWriter:
        """Open the part of a rank and write its header, which says which rank it is; the reserved file goes.

        A numbered folder is its place if an earlier launch of the same name has a part of this rank. Raises OSError.
        """
        header = replace(header, rank=number, ranks=max(joined_world().size, number + 1))
        for files in self.claimed():
            with suppress(FileExistsError):
                writer = files.part(f"rank{number}", header)
                files.release()
                return writer
        raise AssertionError

    def child(self, process: int, header: Header) -> RecordWriter:
        """Open the part of a child process, numbered if another had its id, and write its header. Raises OSError."""
        files = next(self.claimed())
        for number in count(1):
            with suppress(FileExistsError):
                return files.part(f"child-{process}-{number}" if number > 1 else f"child-{process}", header)
        raise AssertionError

    def claimed(self) -> Iterator[Self]:
        """The files whose folders are this launch's, each of which exists then. Raises OSError if one can't be made."""
        return (files for files in self.names() if files.claim())

    def release(self) -> bool:
        """Delete the reserved file if no program has taken it. Returns whether it was deleted."""
        with suppress(OSError):
            if self.reserved and stat.S_ISREG(self.record.stat().st_mode):
                with self.locked() as free:
                    return free and self.delete_reserved()
        return False

    def names(self) -> Iterator[Self]:
        """These files, and after them those with numbered names."""
        yield self
        stem = self.record.name.removesuffix(_SUFFIX).removesuffix(".run")
        for number in count(1):
            name = f"{stem}-{number}.run{_SUFFIX}" if number > 1 else f"{stem}.run{_SUFFIX}"
            if name != self.record.name:
                yield replace(self, record=self.record.with_name(name), reserved=False)

    def claim(self) -> bool:
        """Make the folder this launch's, with a note, unless another has it or the file. Returns whether it is."""
        if self._is_of_another():
            return False
        self.folder.mkdir(exist_ok=True)
        has_parts = bool(self.parts())  # looked up first: a rank that is quicker leaves its note, then its part
        if noted(self.folder) is None:
            if has_parts:  # of an earlier hookcli, which left no note
                return False
            with suppress(FileExistsError):
                leave_note(self.folder, self.launch)
                if self._is_of_another():  # by now
                    self._delete_folder()
                    return False
        return noted(self.folder) == self.launch

    def _is_of_another(self) -> bool:
        """True if another launch has taken the program's file, or another run has reserved it."""
        try:
            if not stat.S_ISREG(self.record.stat().st_mode):
                return False
            with self.locked() as free, opened(self.record) as file:
                return not self.reserved if free else json.loads(file.readline()).get("launch") != self.launch
        except FileNotFoundError:
            return False
        except (ValueError, AttributeError):  # not a record
            return True

    def part(self, name: str, header: Header) -> RecordWriter:
        """Open a new part of this name and write its header. Raises OSError; FileExistsError if the name is taken."""
        from hookcli.record.file.writer import RecordWriter

        header = replace(header, launch=self.launch)
        try:
            return RecordWriter(self.folder / f"{name}{_SUFFIX}", new=True).begun(header)
        except OSError:
            self._delete_folder()  # which has parts if the name is taken, and stays
            raise

    def _delete_folder(self) -> None:
        """Delete the folder, if nothing but the note is in it."""
        with suppress(OSError):
            if [path.name for path in self.folder.iterdir()] == [NOTE]:
                (self.folder / NOTE).unlink()
                self.folder.rmdir()

    def delete_reserved(self) -> bool:
        """Delete the program's file unless it is a pipe. Returns whether it was deleted."""
        if regular := stat.S_ISREG(self.record.stat().st_mode):
            self.record.unlink()
        return regular

    @contextmanager
    def locked(self, create: int = 0) -> Iterator[bool]:
        """Tell whether the program's file is still empty, and keep other processes from taking it meanwhile."""
        file = os.open(self.record, os.O_WRONLY | os.O_APPEND | create, 0o666)
        try:
            with suppress(OSError, ImportError):  # a file system without locks, or Windows
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            status = os.fstat(file)
            yield status.st_size == 0 and self.record.exists() and os.path.samestat(status, self.record.stat())
        finally:
            os.close(file)


def noted(folder: Path) -> str | None:
    """The launch that the folder belongs to; None if none has claimed it."""
    with suppress(OSError, ValueError):
        return content(folder / NOTE, 4096, folder).decode().removesuffix("\n")
    return None


def leave_note(folder: Path, launch: str) -> None:
    """Write the note, whole or not at all. Raises FileExistsError if there is one, OSError if it can't be written."""
    note, text = folder / NOTE, folder / f"{NOTE}-{uuid4().hex}"
    try:
        text.write_text(f"{launch}\n")
        note.hardlink_to(text)  # it gets its name once it can be read, and only one does
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        text.rename(note)  # on a file system without hard links
    finally:
        text.unlink(missing_ok=True)

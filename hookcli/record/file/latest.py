"""Finds records: the latest in the working directory, and all of one run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hookcli.errors import UsageError
from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.file.ranks.ranked_record import open_record
from hookcli.record.file.reading import Record
from hookcli.system.files import is_folder


def latest_record() -> Path:
    """The record in the working directory that was written last. Raises UsageError if there is none."""
    records = [path for pattern in ("*.run.jsonl", "*.run") for path in Path().glob(pattern) if _written(path)]
    if not records:
        raise UsageError("no record in this folder (hookcli run writes records named SCRIPT.run.jsonl); give its path")
    return max(records, key=_written)


def records_of_run(files: RecordFiles, process: int) -> Iterator[tuple[Path, Record]]:
    """The records of a program, of further ones that it started (`process` is its id), and of children that trained."""
    for one in files.names():
        if one is not files and not (one.record.exists() or one.folder.exists()):
            return
        for path in (one.record, *(part for part in one.parts() if part.name.startswith("child"))):
            with suppress(UsageError):
                record = open_record(path)
                if one is files or (record.header and record.header.process == process):
                    yield path, record


def _written(path: Path) -> float:
    """Time of the last write to a record or its parts, in seconds since the epoch; 0 if nothing is written yet."""
    files = path.glob("*.jsonl") if is_folder(path) else [path]
    with suppress(OSError):  # a file may be deleted meanwhile
        return max((file.stat().st_mtime for file in files if file.stat().st_size), default=0.0)
    return 0.0

"""Finds the latest record in the working directory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hookcli.errors import UsageError
from hookcli.system.files import is_folder


def latest_record() -> Path:
    """The record in the working directory that was written last. Raises UsageError if there is none."""
    records = [path for pattern in ("*.run.jsonl", "*.run") for path in Path().glob(pattern) if _written(path)]
    if not records:
        raise UsageError("no record in this folder (hookcli run writes records named SCRIPT.run.jsonl); give its path")
    return max(records, key=_written)


def _written(path: Path) -> float:
    """Time of the last write to a record or its parts, in seconds since the epoch; 0 if nothing is written yet."""
    files = path.glob("*.jsonl") if is_folder(path) else [path]
    with suppress(OSError):  # a file may be deleted meanwhile
        return max((file.stat().st_mtime for file in files if file.stat().st_size), default=0.0)
    return 0.0

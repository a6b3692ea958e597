"""Follows the record of several ranks while it is being written."""

from __future__ import annotations

from pathlib import Path

from hookcli.errors import UsageError
from hookcli.record.file.ranks.ranked_record import RankedRecord, folder_of, no_parts, part_files
from hookcli.record.file.tail import Tail
from hookcli.system.files import exists, is_folder


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

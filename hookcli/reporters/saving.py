"""Writes reports to a file in the format of its suffix, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hookcli.errors import UsageError, unknown
from hookcli.reporters import selection
from hookcli.table import Report
from hookcli.table.files import write_whole
from hookcli.table.grouping import View

_FORMATS = ("html", "json")


def save(reports: Sequence[Report], path: Path) -> None:
    """Write a page or a JSON document. Raises UsageError for another suffix, and if the file can't be written."""
    name = selection.by_suffix(path.suffix)
    if name not in _FORMATS:
        raise UsageError(f"{path}: {unknown('suffix', path.suffix, ['.html', '.json'])}")
    text: str = selection.by_name(name)().render(reports, View())
    try:
        write_whole(path, text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error

"""The lines that stand first in what is said of a record: what went wrong, as parts of capabilities have seen it."""

from __future__ import annotations

from hookcli.record.file.reading import Record
from hookcli.registry.capability import capabilities, load_text


def wrong_lines(record: Record) -> list[str]:
    """The lines of capabilities."""
    with_lines = sorted((one for one in capabilities() if one.headline), key=lambda one: not one.headline_first)
    return [*filter(None, (load_text(one.headline)(record) for one in with_lines))]

"""The lines that stand first in what is said of a record: what went wrong, as parts of capabilities have seen it."""

from __future__ import annotations

from hookcli.record.file.ranks.replicas import apart
from hookcli.record.file.reading import Record
from hookcli.registry.capability import capabilities, load_text


def wrong_lines(record: Record) -> list[str]:
    """The lines on replicas whose weights differ, and those of capabilities."""
    of_parts = (load_text(one.headline)(record) for one in capabilities() if one.headline)
    return [*filter(None, (apart(record), *of_parts))]

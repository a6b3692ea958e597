"""The line that stands first in the summary of a record."""

from __future__ import annotations

from hookcli.record.file.reading import Record
from hookcli_signs.lines import SignsOfStep


def headline(record: Record) -> str:
    """Net: no output is positive in 3 recorded steps"""
    steps = record.of(SignsOfStep)
    if not steps or any(line.positive for line in steps):
        return ""
    return f"{steps[0].model}: no output is positive in {len(steps)} recorded steps"

"""A timeline of memory to chart: its phases, and the lines around it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from hookcli.reporters import footer
from hookcli.table import Report

NEEDS = ("operator", "highest")
"""Columns that a timeline has."""


def is_timeline(report: Report) -> bool:
    """True if rows are moments with bytes in use."""
    return {*NEEDS} <= {column.name for column in report.columns}


def phases(report: Report) -> list[tuple[str, int]]:
    """Each phase with the number of its first row; not the loss, a few operators whose name would hide the next."""
    starts, start = [], 0
    for phase, rows in groupby(row["phase"] for row in report.rows):
        starts += [(str(phase), start)] if phase != "loss" else []
        start += len(list(rows))
    return starts


def above(report: Report) -> str:
    """Describe the peak and the run."""
    return f"{report.totals.get('verdict', 'No memory was used')}\n{footer.run_line(report)}"


def held(report: Report) -> Iterator[str]:
    """Describe what holds the memory at the peak, and what checkpointing changes."""
    yield from (str(report.totals[key]) for key in ("held", "checkpointing") if key in report.totals)
    yield from footer.remarks(report)

"""The columns of the reports of memory, apart from what computes them: help lists them without importing torch."""

from dataclasses import replace

from hookcli.table.columns import columns_named
from hookcli.table.columns.costs import MEMORY_KINDS

MEMORY = (*columns_named("fqn", "type", "bytes", bytes="At peak"), *MEMORY_KINDS)
"""Bytes that each module holds at the peak of a training step, without its parts' bytes."""
TIMELINE = (
    *columns_named("index", "phase", "fqn", "operator", "change_bytes", "bytes", "highest", bytes="After"),
    *MEMORY_KINDS,
)
"""Operators of a training step, with the bytes in use after each, and at most while it ran."""
FITS = (
    replace(*columns_named("batch"), unit="items"),
    *columns_named("highest", "left_bytes", "phase", "fqn"),
    *MEMORY_KINDS,
)
"""Batches with the peak of a training step on each, and how much of a limit is left."""

"""Moments of a timeline of memory: rows in order of time, each with its `phase` and the bytes in use. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from hookcli.table import Row


def stretches(rows: Sequence[Row], owner: Callable[[str], str]) -> list[Row]:
    """One row for successive moments of one phase whose modules have one owner: the highest of them.

    Its `bytes` are those in use at the end of the stretch, its `change_bytes` are those of the whole stretch.
    """
    merged_rows = []
    for (_, fqn), moments in groupby(rows, key=lambda row: (row["phase"], owner(row.fqn))):
        stretch = list(moments)
        highest = max(stretch, key=lambda row: int(row["highest"]))
        whole = {"fqn": fqn, "bytes": stretch[-1]["bytes"], "change_bytes": sum(row["change_bytes"] for row in stretch)}
        merged_rows.append(Row({**highest.values, **whole}))
    return merged_rows

"""Remarks on the rows of a report whose figures could be misread."""

from __future__ import annotations

from collections.abc import Iterable

from hookcli.table.formatting import listed
from hookcli.table.row import Row


def of_complex(rows: Iterable[Row]) -> list[str]:
    """The remark on the statistics of complex tensors; none without any."""
    measured = (row for row in rows if row.stats is not None and str(row.get("dtype")).startswith("complex"))
    names = dict.fromkeys(row.fqn or "(model)" for row in measured)
    return [f"{listed([*names], 1)}: complex, with the statistics of the modulus |z|"] if names else []

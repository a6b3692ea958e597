"""The blocks of a model: the modules that checks of depth compare."""

from __future__ import annotations

from hookcli.table import Report, Row
from hookcli.table.names import around, is_operator

_ENOUGH_BLOCKS = 8


def blocks(report: Report) -> list[Row]:
    """The outputs of the model's blocks that have a spread, in the order in which the blocks are entered.

    Blocks are the modules down to the first depth at which there are eight, so that a wrapped model has blocks, too. A
    container is entered before its parts and returns after them: if its parts are blocks, it is not one. Operators are
    steps inside of blocks, and don't count; nor do masked outputs, whose spread comes from the mask.
    """
    rows = []
    for row in report.rows:
        stats = row.stats
        spreads = stats and stats.finite > 1 and stats.std > 0 and not stats.filled
        if spreads and row.fqn and not is_operator(row.fqn):
            rows.append(row)
    depths = {row.fqn: row.fqn.count(".") for row in rows}
    deep = max(sorted(depths.values())[:_ENOUGH_BLOCKS], default=0)
    outer = [row for row in rows if depths[row.fqn] <= deep]
    # Every enclosing module, since a ModuleList in between is never called.
    containers = {owner for row in outer for owner in around(row.fqn)}
    return [row for row in outer if row.fqn not in containers]

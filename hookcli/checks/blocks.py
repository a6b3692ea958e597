"""The blocks of a model: the modules that checks of depth compare."""

from __future__ import annotations

from collections import Counter

from hookcli.table import Report, Row
from hookcli.table.names import around, is_operator

_ENOUGH_BLOCKS = 8


def blocks(report: Report) -> list[Row]:
    """The outputs of the model's blocks that have a spread, in the order in which the blocks are entered.

    Blocks are the modules down to the first depth at which there are eight, so that a wrapped model has blocks, too. A
    container is entered before its parts and returns after them: if its parts are blocks, it is not one. Operators are
    none, since they are steps inside of blocks; nor do masked outputs count, whose spread is that of the mask.
    """
    measured = [r for r in report.rows if r.stats and r.stats.finite > 1 and r.stats.std > 0]
    spread = [r for r in measured if r.stats and not r.stats.filled]
    rows = [r for r in spread if r.fqn and not is_operator(r.fqn)]
    count = Counter(fqn.count(".") for fqn in {row.fqn for row in rows})
    deep = 0
    while sum(count[level] for level in range(deep + 1)) < _ENOUGH_BLOCKS and deep < max(count, default=0):
        deep += 1
    outer = [row for row in rows if row.fqn.count(".") <= deep]
    # Every enclosing module, since a ModuleList in between is never called.
    containers = {owner for row in outer for owner in around(row.fqn)}
    return [row for row in outer if row.fqn not in containers]

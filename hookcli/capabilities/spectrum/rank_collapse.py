"""Where all tokens become alike: outputs of nearly one direction, made of inputs of several."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.table import Row
from hookcli.table.formatting import number
from hookcli.table.names import is_within

ALIKE = 1.1
"""Effective rank of an output, at most, in which all rows count as alike."""
_SEVERAL = 3.0  # effective rank of an input, at least, that could have been kept
_TOGETHER, _SPREAD = 0.01, 0.2  # the same for the spread of tokens: relative to an item of several, not to the batch
_ENOUGH = 8  # tokens, and features: fewer are easily alike


def collapsed(rows: Sequence[Row], limit: float = ALIKE) -> list[Row]:
    """The rows of a spectrum at which the rank collapses for good; of a module and its parts, the parts'.

    An output counts if no later one, or one around it, has several directions again, as a sum with a shortcut has.
    """
    seen = [row for row in rows if row.get("kind") == "output" and (row.get("dimensions") or 0) >= _ENOUGH]
    of_ranks = _fallen(seen, "effective_rank", "input_rank", limit, _SEVERAL)
    return of_ranks or _fallen(seen, "token_spread", "input_spread", _TOGETHER, _SPREAD)


def _fallen(rows: Sequence[Row], name: str, of_input: str, low: float, high: float) -> list[Row]:
    """The innermost rows with a figure up to `low`, from `high` at least in their inputs, as it stays below."""
    seen = [row for row in rows if row.get(name) is not None]

    def falls(row: Row) -> bool:
        if row[name] > low or (row.get(of_input) or 0.0) < high:
            return False
        ends = max(one["index"] for one in seen if one.fqn == row.fqn or is_within(one.fqn, row.fqn))
        return all(one[name] < high for one in seen if one["index"] > ends or is_within(row.fqn, one.fqn))

    fallen = [*filter(falls, seen)]
    return [row for row in fallen if not any(is_within(one.fqn, row.fqn) for one in fallen)]


def in_short(row: Row, limit: float = ALIKE) -> str:
    """all tokens become alike: effective rank 1.016 (50.96 in its input)"""
    what, name, of_input = "all tokens become alike: effective rank", "effective_rank", "input_rank"
    if row[name] > limit or (row.get(of_input) or 0.0) < _SEVERAL:
        what, name, of_input = "the tokens of each item become alike: spread", "token_spread", "input_spread"
    return f"{what} {number(row[name])} ({number(row[of_input])} in its input)"

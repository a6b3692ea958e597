"""Inputs that become zeros, or ever larger or smaller, over a training, as data do that are changed in place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from hookcli.capabilities.learn.lines import Learning
from hookcli.table.formatting import number

COPY = "change a copy of the data: x = x * mask, not x.mul_(mask)"
_STEPS, _LAST = 3, 2  # recorded ones: the first, and the last, which are fewer in a training that is fast
_FALLING = 4  # shares, each less than the one before: then the last one alone tells
_FEW, _TIMES = 0.05, 100.0  # of the values that were not zero; times the size, less or more


def changed_inputs(lines: Sequence[Learning]) -> str:
    """Words on inputs that have become zeros since the first recorded steps, or vary far less or more; else ""."""
    lines = [line for line in lines if line.dense is not None]  # it is not known of a single row
    if len(lines) < _STEPS + _LAST:
        return ""
    asks = "does the program change its data in place?"
    shares = [line.dense or 0.0 for line in lines]
    before, most = median(shares[:_STEPS]), _FEW * min(shares[:_STEPS])
    if (since := low_since(shares, most, lines)) is not None:
        what = f"the inputs have lost their values: {before:.0%} of them were not zero in the first steps"
        return f"{what}, and less than {most:.1%} since step {since:,}: {asks}"
    spreads = [line.inputs * (line.varied or 0.0) for line in lines]
    least, most = min(spreads[:_STEPS]) / _TIMES, max(spreads[:_STEPS]) * _TIMES
    since = first_of([not least < spread < most for spread in spreads], lines)
    if least and since is not None:
        first, last = (number(median(some)) for some in (spreads[:_STEPS], spreads[-_LAST:]))
        what = f"the standard deviation of the inputs has gone from {first} in the first steps to {last}"
        return f"{what} (more than {_TIMES:.0f}-fold since step {since:,}): {asks}"
    return ""


def low_since(shares: Sequence[float], most: float, lines: Sequence[Learning]) -> int | None:
    """The step since which shares are below a limit; None if they are not, or in one step without a fall before."""
    falls = all(b < a for a, b in pairwise(shares[-_FALLING:]))
    since = first_of([share < most for share in shares], lines)
    return lines[-1].step if since is None and falls and shares[-1] < most else since


def first_of(truths: Sequence[bool], lines: Sequence[Learning]) -> int | None:
    """The first of the last recorded steps in a row of which something is true; None if they are too few."""
    since = len(truths) - [*reversed(truths), False].index(False)
    return lines[since].step if len(truths) - since >= _LAST else None

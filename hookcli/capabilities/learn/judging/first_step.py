"""A first step that moves the weights far: a learning rate that is too high from the start."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.capabilities.learn.lines import Learning
from hookcli.table.formatting import setting

LOWER_RATE = "lower the learning rate"
_FAR = 0.3  # of the weights, where a thousandth is usual


def far(lines: Sequence[Learning]) -> str:
    """Words on a first step that moved the weights by much of their size; "" if it did not, or was not recorded."""
    ratio, rate = (lines[0].ratio, lines[0].rate) if lines and not lines[0].step else (None, None)
    if ratio is None or rate is None or ratio < _FAR:
        return ""
    return f"the first step moved the weights by {ratio:.0%} of their size (learning rate {setting(rate)})"

"""Inputs that are far from a size of 1 where they meet the first weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from hookcli.capabilities.learn.lines import Learning
from hookcli.table.formatting import number

INPUTS = "scale the inputs to mean 0 and standard deviation 1"
_STEPS, _LARGE = 3, 20.0  # recorded steps; the root mean square: that of pixels of 0 to 255 is 100 or more


def large_inputs(lines: Sequence[Learning]) -> str:
    """Words on inputs that are far from a size of 1 where they meet the first weights, in all steps; else ""."""
    sizes = [line.entered for line in lines]
    if len(sizes) < _STEPS or min(sizes) < _LARGE:
        return ""
    return f"the inputs are large (root mean square {number(median(sizes))})"


def large_data(lines: Sequence[Learning]) -> str:
    """As `large_inputs`, also on targets of a squared error that are as far from a size of 1."""
    words = large_inputs(lines)
    targets = [math.hypot(math.sqrt(line.spread), line.expected) for line in lines if line.spread and line.expected]
    if not words or len(targets) < len(lines) or any(line.absolute for line in lines) or min(targets) < _LARGE:
        return words
    return f"{words}, and so are the targets ({number(median(targets))}): standardize both"

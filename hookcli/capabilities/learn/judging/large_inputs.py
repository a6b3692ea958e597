"""Inputs that are far from a size of 1 where they meet the first weights."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hookcli.capabilities.learn.lines import Learning
from hookcli.table.formatting import number

INPUTS = "scale the inputs: mean 0, standard deviation 1"
_STEPS, _LARGE = 3, 20.0  # recorded steps; the root mean square: that of pixels of 0 to 255 is 100 or more


def large_inputs(lines: Sequence[Learning]) -> str:
    """Words on inputs that are far from a size of 1 where they meet the first weights, in all steps; else ""."""
    sizes = [line.entered for line in lines]
    if len(sizes) < _STEPS or min(sizes) < _LARGE:
        return ""
    return f"the inputs are large (root mean square {number(median(sizes))})"

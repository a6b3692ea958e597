"""HK010 and HK011: channels that are dead or saturated, whatever the input."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hookcli.checks.base import Check, Threshold
from hookcli.checks.measurements import ReadsInventory
from hookcli.table import Finding, Row, Skipped

# A unit that is negative half of the time is negative 8 times in a row in one of 256 cases.
_LEAST = 8
_SOME = 0.1  # share of channels from which on a remark names them
_DEAD = ("dead", "zero for every input")  # the count in a row, and its words
_SATURATED = ("saturated", "at a bound for every input")


class DeadUnits(Check):
    """Channels of an activation are exactly zero for every input, at every position.

    A ReLU whose input is never positive passes no gradient, so the layer before it stops learning: the "dying ReLU" (Lu
    et al. 2019, arXiv:1903.06733). The figure is the fraction of such channels in one call of a module. Judged are
    activation modules, modules that return a tensor none of their parts returned (an activation called as a function)
    and, in a run with a backward pass, inputs that come from a ReLU called as a function, directly or through pooling
    and reshaping; with --ops, every activation called as a function, by its own name and line. Channels are the second
    dimension, or the last one after a Linear, Embedding or LayerNorm. A channel needs at least 8 values (batch times
    positions), since a healthy one may be zero a few times by chance: for fully connected layers use a --batch-size of
    8 or more. An output that is zero altogether needs no such batch. Freshly initialised torchvision models have 0.5 at
    most (the squeezing layers of SqueezeNet), and most have 0.
    """

    id = "HK010"
    name = "dead-units"
    means = "too high a learning rate, a bias far below zero, or an initialisation that makes the input negative"
    advice = "lower the learning rate, use LeakyReLU or GELU, or normalise first"
    look = "activations --sort -zeros"
    needs = ("inventory",)
    threshold = Threshold("fraction of channels that are zero for every input", 0.75, 0.0, 1.0)

    def judge(self, measured: ReadsInventory) -> Iterator[Finding | Skipped]:
        """Find channels that are always zero."""
        yield from _judged(self, measured, *_DEAD)

    def near(self, measured: ReadsInventory) -> str:
        """Name the module with the most channels that are always zero."""
        return _near(self, measured, *_DEAD)


class SaturatedUnits(Check):
    """Channels of a bounded activation stay at its bounds for every input, at every position.

    For Sigmoid, Tanh, Softsign, Hardsigmoid and Hardtanh both bounds count, for ReLU6 the upper one. A channel counts
    if it is always within 1 % of the range from a bound: there the derivative of a sigmoid is below 0.01, a 25th of its
    maximum, and that of the hard activations is zero (Glorot and Bengio 2010, section 3.1). As for dead units, a
    channel needs at least 8 values.
    """

    id = "HK011"
    name = "saturated-units"
    means = "inputs or weights that are too large for this activation"
    advice = "normalise its input, or scale the initialisation down"
    follows = ("HK015",)
    look = "activations"
    needs = ("inventory",)
    threshold = Threshold("fraction of channels that stay at a bound", 0.75, 0.0, 1.0)

    def judge(self, measured: ReadsInventory) -> Iterator[Finding | Skipped]:
        """Find channels that stay at the activation's bounds."""
        yield from _judged(self, measured, *_SATURATED)

    def near(self, measured: ReadsInventory) -> str:
        """Name the module with the most channels that stay at a bound."""
        return _near(self, measured, *_SATURATED)


def _judged(check: Check, measured: ReadsInventory, what: str, said: str) -> Iterator[Finding | Skipped]:
    assert check.limit is not None
    for row in _units(measured, what):
        if not _enough(row, what):
            yield Skipped(row.fqn, f"{check.name}: too few values per channel (< {_LEAST}); use a larger --batch-size")
        elif row[what] and _share(row, what) >= check.limit:
            yield check.finding(row.fqn, _count(row, what, said), _share(row, what))


def _near(check: Check, measured: ReadsInventory, what: str, said: str) -> str:
    """A remark on the module with the most of such channels, if it has some and no module is beyond the threshold."""
    rows = [row for row in _units(measured, what) if _enough(row, what)]
    row = max(rows, key=lambda row: _share(row, what), default=None)
    if row is None or not _SOME <= _share(row, what) < (check.limit or 0.0):
        return ""
    figure = f"{math.floor(100 * _share(row, what)) / 100:g}"
    return f"{row.fqn}: {_count(row, what, said)}; `--threshold {check.id}={figure}` reports such"


def _units(measured: ReadsInventory, what: str) -> list[Row]:
    rows = (row for row in measured.inventory.rows if row["kind"] == "units")
    return [row for row in rows if row[what] is not None and row["channels"]]


def _enough(row: Row, what: str) -> bool:
    """True for channels with enough values to judge, and if all values of several are zero."""
    all_dead = what == "dead" and row["dead"] == row["channels"] and row["channels"] * row["positions"] >= _LEAST
    return row["positions"] >= _LEAST or all_dead


def _share(row: Row, what: str) -> float:
    return float(row[what] / row["channels"])


def _count(row: Row, what: str, said: str) -> str:
    of = " of the ReLU before it are" if row.get("received") else ""
    call = f" (call {row['call']})" if row["call"] else ""
    return f"{row[what]:,} of {row['channels']:,} channels{of} {said}{call}"

"""HK010 and HK011: channels that are dead or saturated, whatever the input."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.checks.base import Check, Threshold
from hookcli.checks.measurements import ReadsInventory
from hookcli.report import Finding, Skipped

# A unit that is negative half of the time is negative 8 times in a row in one of 256 cases.
_LEAST = 8


class DeadUnits(Check):
    """Channels of an activation are exactly zero for every input, at every position.

    A ReLU whose input is never positive passes no gradient, so the layer before it stops learning: the "dying ReLU" (Lu
    et al. 2019, arXiv:1903.06733). The figure is the fraction of such channels in one call of a module. Judged are
    activation modules, modules that return a tensor none of their parts returned (an activation called as a function)
    and, in a run with a backward pass, inputs that come from a ReLU called as a function, directly or through pooling
    and reshaping. Channels are the second dimension, or the last one after a Linear, Embedding or LayerNorm. A channel
    needs at least 8 values (batch times positions), since a healthy one may be zero a few times by chance: for fully
    connected layers use a --batch-size of 8 or more. An output that is zero altogether needs no such batch. Freshly
    initialised torchvision models have 0.5 at most (the squeezing layers of SqueezeNet), and most have 0.
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
        yield from _judged(self, measured, "dead", "zero for every input")


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
        yield from _judged(self, measured, "saturated", "at a bound for every input")


def _judged(check: Check, measured: ReadsInventory, what: str, said: str) -> Iterator[Finding | Skipped]:
    assert check.limit is not None
    for row in measured.inventory.rows:
        if row["kind"] != "units" or row[what] is None or not row["channels"]:
            continue
        all_dead = what == "dead" and row["dead"] == row["channels"] and row["channels"] * row["positions"] >= _LEAST
        if row["positions"] < _LEAST and not all_dead:
            yield Skipped(row.fqn, f"{check.name}: too few values per channel (< {_LEAST}); use a larger --batch-size")
            continue
        share = row[what] / row["channels"]
        if row[what] and share >= check.limit:
            of = " of the ReLU before it are" if row.get("received") else ""
            call = f" (call {row['call']})" if row["call"] else ""
            yield check.finding(row.fqn, f"{row[what]:,} of {row['channels']:,} channels{of} {said}{call}", share)

"""HK010 and HK011: channels that are dead or saturated, whatever the input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

from hookcli.checks.base import Check, Threshold, of_kind
from hookcli.checks.measurements import ReadsUnits
from hookcli.table import Finding, Row, Skipped
from hookcli.table.formatting import counted, number

# A unit that is negative half of the time is negative 8 times in a row in one of 256 cases.
_LEAST = 8
_SOME, _MANY = 0.1, 0.25  # shares of channels from which on a remark, and the line on checks that passed, name them


class _Units(Check):
    """A limit on the fraction of channels in a state that they have for every input.

    Of a module that is called on batches of many sizes, those that are large enough are judged.
    """

    needs = ("inventory",)
    counted: ClassVar[str]  # the key of the number of such channels in a row
    state: ClassVar[str]

    def judge(self, measured: ReadsUnits) -> Iterator[Finding | Skipped]:
        assert self.limit is not None
        rows = self._rows(measured)
        with_enough = {row.fqn for row in rows if self._enough(row)}
        batch = "--batch-size" if measured.step is None else "batch"  # the program's own, in a recorded step
        for row in rows:
            if row.fqn not in with_enough:
                enough = f"< {_LEAST}" if row["positions"] < _LEAST else f"from {row.get('items')} inputs"
                yield Skipped(row.fqn, f"{self.name}: too few values per channel ({enough}); use a larger {batch}")
            elif self._enough(row) and row[self.counted] and self._share(row) >= self.limit:
                yield self.finding(row.fqn, self._counts(row) + self._received(measured, row), self._share(row))

    def near(self, measured: ReadsUnits) -> str:
        """Name the module with the most of such channels, and a threshold that shows all that have some."""
        rows = self.in_part(measured)
        if not rows:
            return ""
        figure = f"{math.floor(100 * self._share(rows[-1])) / 100:g}"
        least = f"{rows[-1][self.counted]:,} of {rows[-1]['channels']:,}"
        more = f", and in {counted(len(rows) - 1, 'more module')}, down to {least}" if rows[1:] else ""
        these = f"all {len(rows):,}" if rows[1:] else "these"
        return f"{rows[0].fqn}: {self._counts(rows[0])}{more}; use `--threshold {self.id}={figure}` to report {these}"

    def though(self, measured: ReadsUnits) -> str:
        rows = self.in_part(measured)
        if not rows or self._share(rows[0]) < _MANY:
            return ""
        if len(rows) == 1:
            return f"{rows[0].fqn} has {self.counted} channels"
        return f"{len(rows):,} modules have {self.counted} channels, {rows[0].fqn} the most"

    def in_part(self, measured: ReadsUnits) -> list[Row]:
        """A row of each module with some such channels, the most first; none if any is beyond the threshold."""
        rows = sorted(filter(self._enough, self._rows(measured)), key=self._share, reverse=True)
        if not rows or self._share(rows[0]) >= (self.limit or 0.0):
            return []
        firsts = {row.fqn: row for row in reversed(rows)}
        return [row for row in rows if row is firsts[row.fqn] and self._share(row) >= _SOME]

    def _rows(self, measured: ReadsUnits) -> list[Row]:
        rows = of_kind(measured.inventory, "units")
        return [row for row in rows if row[self.counted] is not None and row["channels"]]

    def _enough(self, row: Row) -> bool:
        """True for channels with enough values to judge, and if all values of several are zero."""
        all_dead = self.counted == "dead" and row["dead"] == row["channels"]
        return row["positions"] >= _LEAST or (all_dead and row["channels"] * row["positions"] >= _LEAST)

    def _share(self, row: Row) -> float:
        return float(row[self.counted] / row["channels"])

    def _counts(self, row: Row) -> str:
        of = " of the ReLU before it are" if row.get("received") else ""
        call = f" (call {row['call']})" if row["call"] else ""
        return f"{row[self.counted]:,} of {row['channels']:,} channels{of} {self.state}{call}"

    def _received(self, measured: ReadsUnits, row: Row) -> str:
        """The output of the module before it, if that alone explains why all channels are dead."""
        explains = self.counted == "dead" and row["dead"] == row["channels"] and not row.get("received")
        for before, one in pairwise(measured.activations.rows if explains and measured.activations else ()):
            if (one.fqn, one.get("call") or 0) == (row.fqn, row["call"]):  # a recorded step has merged calls
                stats = before.stats if before["shape"] == one["shape"] else None
                if stats is not None and stats.max <= 0:
                    return f"; its input, from {before.fqn}, is at most {number(stats.max)}"
        return ""


class DeadUnits(_Units):
    """Channels of an activation are exactly zero for every input, at every position.

    A ReLU whose input is never positive passes no gradient, so the layer before it stops learning: the "dying ReLU" (Lu
    et al. 2019, arXiv:1903.06733). The figure is the share of such channels in one call of a module.

    Judged are:
    - activation modules
    - modules that apply an activation as a function: they return a tensor that none of their parts returned
    - in a run with a backward pass, inputs that come from a ReLU called as a function, directly or through pooling and
      reshaping
    - with --ops, every activation called as a function, by its own name and line

    Channels are the second dimension, or the last one after a Linear, Embedding or LayerNorm. A channel needs at least
    8 values (batch times positions), since a healthy one may be zero a few times by chance: for fully connected layers
    use a --batch-size of 8 or more. An output that is zero altogether is reported for any batch. Of freshly initialised
    torchvision models, most have no such channels; the squeezing layers of SqueezeNet have up to half.
    """

    id = "HK010"
    name = "dead-units"
    counted, state = "dead", "zero for every input"
    means = "a bias far below zero, an initialisation that makes inputs negative, or a learning rate that is too high"
    advice = "look at the bias and initialisation before it, or use LeakyReLU"
    follows = ("HK055", "HK066")
    look = "activations --sort -zeros"
    threshold = Threshold("fraction of channels that are zero for every input", 0.75, 0.0, 1.0)


class SaturatedUnits(_Units):
    """Channels of a bounded activation stay at its bounds for every input, at every position.

    For Sigmoid, Tanh, Softsign, Hardsigmoid and Hardtanh both bounds count, for ReLU6 the upper one. A channel counts
    if it is always within 1 % of the range from a bound: there the derivative of a sigmoid is below 0.01, a 25th of its
    maximum, and for the hard activations it is zero (Glorot and Bengio 2010, section 3.1). As for dead units, a
    channel needs at least 8 values, of as many inputs unless there are 64. The sigmoid that the model returns is
    not judged: sure answers of a classifier with several labels are at a bound.
    """

    id = "HK011"
    name = "saturated-units"
    counted, state = "saturated", "at a bound for every input"
    means = "inputs or weights that are too large for this activation"
    advice = "normalise its input, or scale the initialisation down"
    follows = ("HK015", "HK055")
    look = "activations"
    threshold = Threshold("fraction of channels that stay at a bound", 0.75, 0.0, 1.0)

    def _rows(self, measured: ReadsUnits) -> list[Row]:
        """The rows to judge, without a sigmoid that is the model's own answer: a sure one is at a bound."""
        rows = super()._rows(measured)
        return [row for row in rows if not (row.get("returned") and "sigmoid" in row["type"].lower())]

    def _enough(self, row: Row) -> bool:
        """True for enough values, of several inputs or of many places: the values of one input are much alike."""
        return super()._enough(row) and (row.get("items", _LEAST) >= _LEAST or row["positions"] >= _LEAST**2)

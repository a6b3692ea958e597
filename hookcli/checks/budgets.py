"""HK022 to HK024: limits on parameters, multiply-accumulates and memory that is kept for backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from hookcli.checks.base import ERROR, Check, Threshold
from hookcli.checks.measurements import ReadsInventory, ReadsWeightsAndGrads
from hookcli.table import Finding, Report, formatting


class _ReadsShapes(Protocol):
    shapes: Report


class Budget(Check):
    """A limit that is set by an option alone, on a figure that needs no values."""

    severity = ERROR
    values = False

    def above(self, value: int, what: str) -> Iterator[Finding]:
        """A finding if the value is above the limit; `what` it counts."""
        if self.threshold and self.limit is not None and value > self.limit:
            written = formatting.size if self.threshold.unit == "bytes" else formatting.quantity
            yield self.finding("", f"{written(value)} {what}, allowed: {written(round(self.limit))}", value)


class TooManyParameters(Budget):
    """The model has more parameters than --max-params allows; each tensor counts once, and frozen ones count, too."""

    id = "HK022"
    name = "max-params"
    asked_by = "--max-params"
    means = "a layer that became wider, or is no longer shared"
    advice = "`hookcli shapes MODEL --sort -params` shows the largest"
    look = "shapes --sort -params"
    needs = ("inventory",)
    threshold = Threshold("parameters", None, unit="count")

    def judge(self, measured: ReadsInventory) -> Iterator[Finding]:
        yield from self.above(measured.inventory.totals["params"], "parameters")


class TooManyMacs(Budget):
    """One forward pass takes more multiply-accumulates than --max-macs allows.

    They are counted as in `hookcli shapes`: in eval mode, for one item of the model's natural input, or for the given
    input.
    """

    id = "HK023"
    name = "max-macs"
    asked_by = "--max-macs"
    means = "a higher resolution, or a lost stride or group"
    advice = "`hookcli shapes MODEL --sort -macs` shows the largest"
    look = "shapes --sort -macs"
    needs = ("shapes",)
    threshold = Threshold("multiply-accumulates of one forward pass", None, unit="count")

    def judge(self, measured: _ReadsShapes) -> Iterator[Finding]:
        yield from self.above(measured.shapes.totals["macs"], "multiply-accumulates")


class TooMuchMemory(Budget):
    """Autograd saves more memory for backward than --max-activation-memory allows.

    The figure is the size of all storages that the forward pass saves for backward, each counted once, without
    parameters and buffers; it is the column Kept of `hookcli trace --summary`. It grows with the batch: set
    --batch-size to the one that you use.
    """

    id = "HK024"
    name = "max-activation-memory"
    asked_by = "--max-activation-memory"
    means = "a larger batch or resolution, or an operation that is no longer in place"
    advice = "`hookcli shapes MODEL --train --sort -kept` shows where; checkpoint there"
    look = "shapes --train --sort -kept"
    needs = ("grads", "inventory")
    threshold = Threshold("bytes saved for backward", None, unit="bytes")

    def judge(self, measured: ReadsWeightsAndGrads) -> Iterator[Finding]:
        yield from self.above(measured.inventory.totals["kept_bytes"], "saved for backward")

"""HK033: a limit on the memory at the peak of a training step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hookcli.checks.base import Threshold
from hookcli.checks.budgets import Budget
from hookcli.checks.measurements import ReadsProbes
from hookcli.table import Finding


class PeakTooHigh(Budget):
    """A training step takes more memory at its peak than --max-peak-memory allows.

    The figure is the one of `hookcli memory`: parameters, gradients, the state of the optimizer (--optimizer), what is
    kept for backward, and temporaries, at the moment when most of them exist. With --no-backward it is the peak of a
    forward without gradients. It grows with the batch: set --batch-size to the one that you use.
    """

    id = "HK033"
    name = "max-peak-memory"
    asked_by = "--max-peak-memory"
    means = "a larger batch, resolution or model, or an optimizer with more state"
    advice = "see `hookcli memory MODEL`; its --fits finds the largest batch"
    look = "memory"
    needs = ("memory",)
    threshold = Threshold("bytes in use at the peak of a training step", None, unit="bytes")

    def judge(self, measured: ReadsProbes) -> Iterator[Finding]:
        totals = measured.probes["memory"].totals
        phase = {"loss": "the loss", "step": "the optimizer's step"}.get(totals["peak_phase"], totals["peak_phase"])
        for finding in self.above(totals["peak_bytes"], f"in use at the peak, in {phase}"):
            outside = totals["peak_fqn"].startswith("(")  # in the loss or the optimizer
            yield replace(finding, fqn="" if outside else totals["peak_fqn"])

"""The check."""

from hookcli.checks.base import Threshold
from hookcli.checks.budgets import Budget


class TooManyZeros(Budget):
    """More parameters are zero than --max-zeros allows."""

    id = "ZEROS"
    name = "max-zeros"
    asked_by = "--max-zeros"
    means = "a layer that was never initialized"
    advice = "initialize it"
    needs = ("zeros",)
    threshold = Threshold("parameters that are zero", None, unit="count")

    def judge(self, measured):
        yield from self.above(measured.probes["zeros"].totals["zeros"], "zeros")

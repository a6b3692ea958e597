"""HK027: the model differs from its saved baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from hookcli.checks.base import ERROR, Check
from hookcli.checks.measurements import ReadsActivations
from hookcli.diff.baseline import Baseline
from hookcli.diff.tolerance import Tolerance
from hookcli.table import Finding, Report


class _RunLikeTheBaselines(ReadsActivations, Protocol):
    shapes: Report
    baseline: Baseline
    settings: Report | None
    grads: Report | None
    tolerance: Tolerance


class Changed(Check):
    """The model differs from its baseline: the file that was saved with --save and is given with --against.

    Settings (such as the momentum of a normalization), shapes, types, dtypes, parameters and MACs of every layer are
    compared exactly. Statistics of activations and gradients are compared within --rtol and --atol, which limit by norm
    how far the elements may have moved [3.5e-4 for float32, ten times that for gradients]. Every layer that was changed
    is reported. Differences in shapes and statistics that follow from such a change are only counted; without one, the
    first that moved is reported, and the figure is how many times its tolerance it moved. A baseline of another input,
    seed, mode or dtype is refused; one of another version of torch is compared, with a note.
    """

    id = "HK027"
    name = "changed"
    severity = ERROR
    means = "a changed layer, initialisation or setting, or a lost gradient"
    advice = "undo it or, if it is intended, save a new baseline (--save)"
    needs = ("shapes", "activations", "baseline")
    asked_by = "--against"
    whole = True

    def judge(self, measured: _RunLikeTheBaselines) -> Iterator[Finding]:
        reports = filter(None, (measured.settings, measured.shapes, measured.activations, measured.grads))
        for change in measured.baseline.changes([*reports], measured.tolerance):
            limit = None if change.excess is None else 1.0
            yield replace(self.finding(change.fqn, change.message, change.excess), threshold=limit)

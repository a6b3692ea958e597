"""What is no longer as a baseline has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hookcli.checks.base import ERROR, Check, Measurements
from hookcli.report import Finding


class Changed(Check):
    """The model is no longer what it was when its baseline was saved (--save), as --against compares it.

    Settings (such as the momentum of a normalization), shapes, types, dtypes, parameters and MACs of every layer are
    compared exactly; statistics of activations and of gradients within --rtol and --atol, which say how far the
    elements may have moved, by norm [3.5e-4 for float32, ten times that for gradients]. Each layer that was changed is
    named. Other shapes and statistics follow from that, and are counted; where nothing else changed, the first that
    moved is named, and the figure is how many times its tolerance it moved. A baseline of another input, seed, mode or
    dtype is refused; one of another version of torch is compared, and that is said.
    """

    id = "HK027"
    name = "changed"
    severity = ERROR
    means = "a layer, an initialisation or a setting that was changed, or a gradient that was lost"
    advice = "undo it, or save the baseline anew (--save) if it is meant"
    needs = ("shapes", "activations", "baseline")
    asked_by = "--against"
    whole = True

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.shapes is not None and measured.activations is not None and measured.baseline is not None
        reports = [
            report for report in (measured.settings, measured.shapes, measured.activations, measured.grads) if report
        ]
        for change in measured.baseline.changes(reports, measured.tolerance):
            limit = None if change.excess is None else 1.0
            yield replace(self.finding(change.fqn, change.message, change.excess), threshold=limit)

"""HK020 and HK026: the result for one item depends on the rest of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hookcli.checks.base import ERROR, WARNING, Check, Comparison, Measurements, Threshold
from hookcli.report import Finding
from hookcli.report.formatting import number

# Units in the last place by which kernels for other batch sizes may differ; for float32, far below the default limit.
_STEPS = 16
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


class BatchDependence(Check):
    """In eval mode, the output for the first item changes when the other items of the batch do.

    The model runs twice in eval mode without gradients, once on the batch and once with all items but the first
    replaced, and the two outputs for the first item are compared. For a model that is ready for inference they are the
    same: a prediction must depend on its own input only. The figure is the largest difference relative to the largest
    output; both runs use the same kernels, so it is 0 for most models. The finding names the first module whose output
    differs. Needs a batch of two or more in dimension 0 of every input. Only a warning if that module has
    batch_first=False, since dimension 0 may then be the sequence (if it is not, that is the fault), or is dynamically
    quantized, by the range of the whole batch.
    """

    id = "HK020"
    name = "batch-dependence"
    severity = ERROR
    means = "batch statistics in eval mode (track_running_stats=False), or a mean over dimension 0"
    advice = "use running statistics or a per-item normalization (GroupNorm, LayerNorm), and look for dim=0"
    needs = ("companions",)
    threshold = Threshold("largest relative difference", 1e-3, 0.0, 1.0)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        """Find outputs that depend on the other items of the batch."""
        yield from _apart(
            self, measured.companions, measured.dtype, "the first item's output changes with the other items"
        )


class SplitBatch(Check):
    """In eval mode, two halves of the batch give another result than the whole batch.

    A model that fails this check and passes HK020 depends on the size of its batch: it has a reshape with a fixed
    number, keeps state from call to call, or divides a sum by a constant. Kernels for other sizes add in another order,
    so the tolerance is relative to the largest output, and 16 units in the last place in half precision. Runs only with
    --split-batch, or if selected by name.
    """

    id = "HK026"
    name = "split-batch"
    severity = ERROR
    means = "a batch size written into a reshape, or state kept from call to call"
    advice = "use x.shape[0] or -1 for the batch size in view and reshape, and reset the state"
    needs = ("halves",)
    asked_by = "--split-batch"
    threshold = Threshold("largest relative difference", 1e-3, 0.0, 1.0)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        """Find outputs that differ between the whole batch and its halves."""
        yield from _apart(
            self, measured.halves, measured.dtype, "two half batches give another result than the whole batch"
        )


def _apart(check: Check, comparison: Comparison, dtype: str, said: str) -> Iterator[Finding]:
    limit = max(check.limit or 0.0, _STEPS * _EPS.get(dtype, 0.0))
    if comparison.failed:
        yield check.finding(comparison.fqn, comparison.failed)
    elif not comparison.value <= limit:  # also true of NaN
        found = check.finding(comparison.fqn, f"{said}, by {number(comparison.value)} of the largest", comparison.value)
        found = replace(found, threshold=limit)
        if comparison.excuse:
            found = replace(found, severity=WARNING, message=f"{found.message}; {comparison.excuse}")
        yield found

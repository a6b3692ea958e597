"""Whether what the model says of one item depends on the items beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hookcli.checks.base import ERROR, WARNING, Check, Comparison, Measurements, Threshold
from hookcli.report import Finding
from hookcli.report.formatting import number

# Steps of the last place that kernels for other batch sizes may differ by; float32's are far below the default limit.
_STEPS = 16
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


class BatchDependence(Check):
    """In eval mode, the output for the first item changes when the other items of the batch do.

    The model is run twice in eval mode without gradients, on the batch and with all but its first item replaced, and
    the two outputs for the first item are compared. A model that is ready for inference gives the same one: only then
    is a prediction one of its input. The figure is the largest difference relative to the largest output; kernels are
    the same for both, so it is 0 for most models. The finding names the first module whose output differs. Needs a
    batch of two or more in dimension 0 of every input. Only a warning where that module has batch_first=False, since
    dimension 0 may then be the sequence (if it is not, that is the fault), or is quantized dynamically, by the range of
    the whole batch.
    """

    id = "HK020"
    name = "batch-dependence"
    severity = ERROR
    means = "batch statistics in eval mode (track_running_stats=False), or a mean over dimension 0"
    advice = "use running statistics or a normalization per item (GroupNorm, LayerNorm), and look for dim=0"
    needs = ("companions",)
    threshold = Threshold("largest relative difference", 1e-3, 0.0, 1.0)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.companions is not None
        yield from _apart(
            self, measured.companions, measured.dtype, "the first item's output changes with the other items"
        )


class SplitBatch(Check):
    """In eval mode, the batch in two halves gives another result than the batch as a whole.

    What is wrong with a model that fails this and passes HK020: it knows the size of its batch, as by a reshape with a
    number in it, a state that is kept from call to call, or a sum that is divided by a constant. Kernels for other
    sizes add in another order, so the tolerance is relative to the largest output, and 16 steps of the last place in
    half precision. Not run unless it is asked for, by --split-batch or by selecting it.
    """

    id = "HK026"
    name = "split-batch"
    severity = ERROR
    means = "a batch size that is written into a reshape, or state that passes from call to call"
    advice = "use x.shape[0] or -1 for the batch in view and reshape, and reset the state"
    needs = ("halves",)
    asked_by = "--split-batch"
    threshold = Threshold("largest relative difference", 1e-3, 0.0, 1.0)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.halves is not None
        yield from _apart(self, measured.halves, measured.dtype, "two half batches give another result than the whole")


def _apart(check: Check, comparison: Comparison, dtype: str, said: str) -> Iterator[Finding]:
    limit = max(check.limit or 0.0, _STEPS * _EPS.get(dtype, 0.0))
    if comparison.failed:
        yield check.finding(comparison.fqn, comparison.failed)
    elif not comparison.value <= limit:  # NaN is apart, too
        found = check.finding(comparison.fqn, f"{said}, by {number(comparison.value)} of the largest", comparison.value)
        found = replace(found, threshold=limit)
        if comparison.excuse:
            found = replace(found, severity=WARNING, message=f"{found.message}; {comparison.excuse}")
        yield found

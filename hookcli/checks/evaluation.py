"""HK020, HK025, HK026, HK028 and HK029: the same item must give the same output, run again or beside other items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from hookcli.checks.base import ERROR, WARNING, Check, Threshold, first_in, of_kind
from hookcli.checks.measurements import Comparison, Evaluation, ReadsInventory
from hookcli.table import Finding, Report

# Units in the last place by which kernels for other batch sizes may differ; for float32, far below the default limit.
_STEPS = 16
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_NORM = "use running statistics, GroupNorm or LayerNorm"
_DIM = "look for dim=0"
_CAUSES = {
    "statistics": ("batch statistics in eval mode (track_running_stats=False)", _NORM),
    "padding": (
        "padding takes part: beside longer items the first item has more of it",
        "mask the padding (a bias makes it non-zero), and divide by each item's own length",
    ),
    "observer": (
        "an observer that is enabled, as in training a model for quantization",
        "disable it for inference: model.apply(torch.ao.quantization.disable_observer)",
    ),
    "expected": (
        "a sequence in dimension 0, or quantization by the range of the whole batch",
        "ignore it if that is meant, else put the batch into dimension 0",
    ),
    "nodes": ("a graph network, whose nodes are in dimension 0", "ignore it for a graph network, else look for dim=0"),
    "set": (
        "items that are meant to see each other (a set, an assignment, weights made from the batch), or a fault",
        "ignore it if dimension 0 is not a batch or its items shall mix, else look for dim=0",
    ),
    "": ("a mean, maximum or softmax over dimension 0", _DIM),
}


class _ReadsCompanions(Protocol):
    companions: Comparison
    dtype: str


class _ReadsHalves(Protocol):
    halves: Comparison
    dtype: str


class _ReadsEvaluation(Protocol):
    evaluation: Evaluation


class BatchDependence(Check):
    """In eval mode, the output for an item changes when the other items of the batch do.

    The model runs twice in eval mode without gradients, once on the batch and once with all items but the first
    replaced. The two outputs for the first item are compared. In the first batch, the last item is then compared in the
    same way. For a model that is ready for inference they are the same: a prediction must depend on its own input only.
    The figure is the largest difference relative to the largest output; both runs use the same kernels, so it is 0 for
    most models. Where items are padded to the longest, outputs are compared as far as both go. Needs a batch of two or
    more in dimension 0 of every input. Of several batches each is judged, and the first that fails is named.

    The finding names the first module whose output differs, or where padding changes a result, the first that makes it
    more than zeros; and the operator by which the items mix. It is an error when it corrupts every sample: a softmax, a
    sort, a reshape or layers over dimension 0, or most arithmetic of an item with a statistic of the batch.

    It is only a warning where the mixing may be meant:
    - The items are compared with each other: attention over a set, a matrix of similarities, nearest neighbours.
    - Weights, a memory or a context are computed from the batch.
    - A statistic of the batch is put beside each item, or taken of groups of items.
    - Rows and columns are normalised in turn (Sinkhorn).
    - A layer subtracts the mean over the batch from vectors, as the equivariant layers of Deep Sets do. It can't be
      told from a mean over the wrong dimension.
    - Another output is one for all items.
    - Dimension 0 may be the sequence: a layer has batch_first=False, or the input has no batch dimension.
    - Quantization uses the range of the whole batch, dynamically or by an observer that is enabled.
    - Dimension 0 may hold the nodes of a graph: a sum by index (as of messages to each node), statistics of the nodes
      beside one, or a product with a matrix that is not a parameter.
    - The operator is not found.
    """

    id = "HK020"
    name = "batch-dependence"
    severity = ERROR
    means = "batch statistics in eval mode (track_running_stats=False), a mean over dimension 0, or padding"
    advice = "use running statistics, mask the padding, or look for dim=0"
    needs = ("companions",)
    threshold = Threshold("largest relative difference", 1e-3, 0.0, 1.0)

    def judge(self, measured: _ReadsCompanions) -> Iterator[Finding]:
        means, advice = _CAUSES[measured.companions.cause]
        sample = "sample 0" if measured.companions.item == "first" else "the last sample"
        change = f"{sample}'s output depends on the rest of the batch"
        for finding in _apart(self, measured.companions, measured.dtype, change):
            yield replace(finding, hint=f"{means}; {advice}", remedy=advice)


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
    advice = "take the batch size from x.shape[0] or -1, and reset the state"
    follows = ("HK020", "HK029")
    needs = ("halves",)
    asked_by = "--split-batch"
    threshold = Threshold("largest relative difference", 1e-3, 0.0, 1.0)

    def judge(self, measured: _ReadsHalves) -> Iterator[Finding]:
        change = "two half batches give a different result from the whole batch"
        return _apart(self, measured.halves, measured.dtype, change)


def _apart(check: Check, comparison: Comparison, dtype: str, change: str) -> Iterator[Finding]:
    limit = max(check.limit or 0.0, _STEPS * _EPS.get(dtype, 0.0))
    for finding in check.difference(comparison, limit, change):
        excused = comparison.excuse and not comparison.failed
        about = "" if comparison.failed else comparison.excuse or comparison.reason
        message = f"{finding.message}; {about}" if about else finding.message
        yield replace(finding, severity=WARNING if excused else finding.severity, message=message)


class RandomInEval(Check):
    """In eval mode the forward pass draws random numbers, so its output differs from call to call.

    This goes unnoticed as long as every run has the same seed: --repeat 2 seeds its runs and finds them equal. This
    check therefore compares the states of PyTorch's generators (on the CPU and on the model's devices) before and after
    a forward pass in eval mode. The finding names the modules that drew; if none of a module's parts did, the module's
    own code did. Only a warning, since some models sample on purpose.
    """

    id = "HK028"
    name = "random-in-eval"
    means = "a dropout that is always on: F.dropout(x) without training=self.training, or torch.rand in forward"
    advice = "pass training=self.training, or draw only `if self.training`"
    follows = ("HK030",)
    needs = ("evaluation",)

    def judge(self, measured: _ReadsEvaluation) -> Iterator[Finding]:
        modules, first = measured.evaluation.drawing, first_in(measured.evaluation.batch)
        if modules:
            others = f", as do {len(modules) - 1} other modules" if modules[2:] else ""
            others = others or (f", and so does {modules[1] or 'the model itself'}" if modules[1:] else "")
            yield self.finding(modules[0], f"draws random numbers in eval mode{others}{first}", len(modules))


class StateInEval(Check):
    """In eval mode, a second run on the same batch gives a different result: the model keeps state from run to run.

    The second run gets the same random numbers as the first, and starts with the model as the first run left it. The
    state may be a buffer (the finding then names its module) or an attribute, or the random numbers do not come from
    PyTorch's generators (random, numpy, a torch.Generator of the model). The figure is the largest difference relative
    to the largest output. Other batches would tell nothing about such a model, so HK020 does not judge it.
    """

    id = "HK029"
    name = "state-in-eval"
    severity = ERROR
    means = "a counter, cache or running average that is updated in eval mode, or a private random generator"
    advice = "update it only `if self.training`, or reset it in each forward"
    needs = ("evaluation",)
    threshold = Threshold("largest relative difference", 1e-3, 0.0, 1.0)

    def judge(self, measured: _ReadsEvaluation) -> Iterator[Finding]:
        assert self.limit is not None
        if again := measured.evaluation.again:
            again = replace(again, batch=measured.evaluation.batch)
            yield from self.difference(again, self.limit, "a second run on the same batch gives a different result")


class _ReadsRepeatedRuns(ReadsInventory, Protocol):
    again: Sequence[Report]


class Nondeterminism(Check):
    """The same input, weights and seed gave different bits when the run was repeated.

    With --repeat 2 the run is repeated from the same state of PyTorch's random generators, and checksums of the bits of
    every module output and every parameter gradient are compared. The finding names the first tensor that differs, and
    how many do. On an accelerator, some kernels add in no fixed order; on a CPU the cause is nearly always a random
    number that torch.manual_seed does not control (random, numpy), or state kept from call to call.
    """

    id = "HK025"
    name = "nondeterminism"
    severity = ERROR
    means = "a random source that torch.manual_seed does not control, state kept from call to call, or atomic additions"
    advice = "seed random and numpy; try torch.use_deterministic_algorithms(True)"
    follows = ("HK028", "HK029")
    needs = ("inventory", "again")
    asked_by = "--repeat 2"

    def judge(self, measured: _ReadsRepeatedRuns) -> Iterator[Finding]:
        first = _bits(measured.inventory)
        for number, report in enumerate(measured.again, 2):
            other = _bits(report)
            differing = [key for key in {**first, **other} if first.get(key) != other.get(key)]
            if differing:
                fqn, of, *_ = differing[0]
                message = f"{of} differs in run {number}, first here; {len(differing)} of {len(first)} tensors do"
                yield self.finding(fqn, message, len(differing))
                return


def _bits(report: Report) -> dict[tuple[str, str, int, str, int], int]:
    """Checksums in the order in which modules return and gradients arrive."""
    rows = of_kind(report, "bits")
    return {(r.fqn, r["of"], r["call"], r["path"], n): r["sum"] for n, r in enumerate(rows)}

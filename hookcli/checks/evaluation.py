"""HK028 and HK029: in eval mode, the same input must give the same output."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.checks.base import ERROR, Check, Measurements, Threshold
from hookcli.report import Finding
from hookcli.report.formatting import number


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

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        """Find modules that draw random numbers in eval mode."""
        modules = measured.evaluation.drawing
        if modules:
            others = f", as do {len(modules) - 1} other modules" if modules[2:] else ""
            others = others or (f", and so does {modules[1] or 'the model itself'}" if modules[1:] else "")
            yield self.finding(modules[0], f"draws random numbers in eval mode{others}", len(modules))


class StateInEval(Check):
    """In eval mode, a second run on the same batch gives another result: the model keeps state from run to run.

    The second run gets the same random numbers as the first, and starts with the model as the first run left it. The
    state may be a buffer (the finding then names its module) or an attribute, or the random numbers do not come from
    PyTorch's generators (random, numpy, a torch.Generator of the model). The figure is the largest difference relative
    to the largest output. Other batches would tell nothing about such a model, so HK020 does not judge it.
    """

    id = "HK029"
    name = "state-in-eval"
    severity = ERROR
    means = "a counter, cache or running average that is updated in eval mode, or a random source of its own"
    advice = "update it only `if self.training`, or reset it at the beginning of forward"
    needs = ("evaluation",)
    threshold = Threshold("largest relative difference", 1e-3, 0.0, 1.0)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        """Find results and buffers that change from run to run in eval mode."""
        assert self.limit is not None
        again = measured.evaluation.again
        if again and again.failed:
            yield self.finding(again.fqn, again.failed)
        elif again and not again.value <= self.limit:  # also true of NaN
            said = f"a second run on the same batch gives another result, by {number(again.value)} of the largest"
            yield self.finding(again.fqn, said, again.value)

"""What eval mode promises: one answer to one question."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.checks.base import ERROR, Check, Measurements, Threshold
from hookcli.report import Finding
from hookcli.report.formatting import number


class RandomInEval(Check):
    """In eval mode the forward pass drew random numbers, so that its answer is another one each time.

    Nobody notices while every run is seeded alike: --repeat 2 seeds its runs, and finds them the same. So the states of
    PyTorch's generators, the CPU's and those of the devices that the model is on, are compared before and after a
    forward pass in eval mode. The modules that drew are named; where none of its parts did, it is the code of the
    module itself. Only warns, since some models sample on purpose.
    """

    id = "HK028"
    name = "random-in-eval"
    means = "a dropout that is always on: F.dropout(x) without training=self.training, or torch.rand in forward"
    advice = "pass training=self.training, or draw only `if self.training`"
    follows = ("HK030",)
    needs = ("evaluation",)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.evaluation is not None
        modules = measured.evaluation.drawing
        if modules:
            others = f", as do {len(modules) - 1} other modules" if modules[2:] else ""
            others = others or (f", and so does {modules[1] or 'the model itself'}" if modules[1:] else "")
            yield self.finding(modules[0], f"it draws random numbers in eval mode{others}", len(modules))


class StateInEval(Check):
    """In eval mode the same batch, run again, gives another result: the model remembers that it ran.

    The second run has the same random numbers as the first, and starts where the first left the model. What is
    remembered is in a buffer (the finding then names its module) or in an attribute, or the random numbers are not
    those of PyTorch's generators (random, numpy, a torch.Generator of the model's own). The figure is the largest
    difference relative to the largest output. What such a model says of other batches means nothing, so HK020 does not
    judge it.
    """

    id = "HK029"
    name = "state-in-eval"
    severity = ERROR
    means = "a counter, cache or running average that is updated in eval mode, or a random source of its own"
    advice = "update it only `if self.training`, or reset it at the beginning of forward"
    needs = ("evaluation",)
    threshold = Threshold("largest relative difference", 1e-3, 0.0, 1.0)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.evaluation is not None and self.limit is not None
        again = measured.evaluation.again
        if again and again.failed:
            yield self.finding(again.fqn, again.failed)
        elif again and not again.value <= self.limit:  # NaN is apart, too
            said = f"the same batch gives another result when it is run again, by {number(again.value)} of the largest"
            yield self.finding(again.fqn, said, again.value)

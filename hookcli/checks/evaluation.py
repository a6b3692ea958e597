"""What eval mode promises: one answer to one question."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.checks.base import Check, Facts
from hookcli.report import Finding


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
    needs = ("evaluation",)

    def judge(self, facts: Facts) -> Iterator[Finding]:
        assert facts.evaluation is not None
        modules = facts.evaluation.drawing
        if modules:
            others = f", as do {len(modules) - 1} other modules" if modules[2:] else ""
            others = others or (f", and so does {modules[1] or 'the model itself'}" if modules[1:] else "")
            yield self.finding(modules[0], f"it draws random numbers in eval mode{others}", len(modules))

"""HK038 and HK044: the loss of every step of a recorded run."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.checks.base import ERROR, Check
from hookcli.checks.measurements import ReadsLosses
from hookcli.checks.search import find_where
from hookcli.table import Finding
from hookcli.table.losses import KNOWN


class LossNotFinite(Check):
    """The loss of a recorded run was NaN or infinite in some step, recorded or not.

    `hookcli run --check` judges the loss of every step: the number on which `backward()` was called, or the sum of
    several whose gradients one optimizer's step took. The finding names the first such step of the model. A loss counts
    even if the program skips the optimizer's step; gradients that overflow under a GradScaler do not, if the loss
    without its scale is finite.
    """

    id = "HK038"
    name = "loss-not-finite"
    severity = ERROR
    means = "a learning rate that is too high, or a logarithm, a root or a division near zero"
    advice = find_where("it begins") or "lower the learning rate; keep logarithms, roots and divisions away from zero"
    follows = ("HK004", "HK005", "HK044", "HK055")
    needs = ("losses",)
    asked_by = "hookcli run --check"

    def judge(self, measured: ReadsLosses) -> Iterator[Finding]:
        if fault := measured.losses.fault():
            yield self.finding("", f"the loss was {fault}", measured.losses.first_fault)


class LossJumped(Check):
    """The loss of a step of a recorded run was more than ten times as high as any before it.

    The loss of every step is judged, as for `loss-not-finite`, once ten are known and the highest is above zero. The
    figure is the first such step. A loss that rises slowly, or was as high in an earlier step, is not reported, nor
    one that a far too large update has ruined, which is HK055.
    """

    id = "HK044"
    name = "loss-jumped"
    means = "a batch with a value far out, a learning rate that is too high, or gradients that were not clipped"
    advice = "look at the batch of that step, or clip gradients"
    follows = ("HK066",)
    needs = ("losses",)
    asked_by = "hookcli run --check"

    def too_little(self, measured: ReadsLosses) -> str:
        known = measured.losses.steps
        return "" if known > KNOWN else f"a jump can be told after {KNOWN} losses; {known} are known"

    def judge(self, measured: ReadsLosses) -> Iterator[Finding]:
        course = measured.losses
        if course.jumped is not None and not course.blow_up():
            yield self.finding("", f"the loss {course.jumps()}", course.jumped)

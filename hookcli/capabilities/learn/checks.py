"""HK056 and HK057: gradients that are never cleared, and a loss that is no better than that of guessing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

from hookcli.capabilities.learn.lines import Learning
from hookcli.checks.base import ERROR, Check
from hookcli.checks.measurements import ReadsLines
from hookcli.table import Finding
from hookcli.table.formatting import loss as text_of

_STEPS = 3  # recorded steps, one after the other
_LOSSES, _PER_CLASS = 50, 300
_NEAR = 0.9  # of the loss of guessing


class GradientsNotCleared(Check):
    """The gradients that the optimizer took in each recorded step include those of all steps before.

    PyTorch adds the gradients of a backward pass to those that are there. Without `optimizer.zero_grad()` each step
    moves the weights along the sum of all gradients so far, most of them of weights that are long gone. Recorded steps
    are judged from the second on, once there are three; the gradients of some parameters are looked at as each backward
    pass begins. One that clears them anywhere between two steps is not reported, nor is one that sums the gradients of
    several passes before a step. Models with several optimizers are not judged.
    """

    id = "HK056"
    name = "gradients-not-cleared"
    severity = ERROR
    means = "a training loop without optimizer.zero_grad()"
    advice = "call optimizer.zero_grad() between one step and the next"
    needs = ("losses",)
    reads = (Learning.kind,)
    asked_by = "hookcli run --check"

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        left = [line for line in measured.lines[Learning.kind] if isinstance(line, Learning) and line.left]
        if left and left[-1].left == left[-1].judged >= _STEPS:
            steps = f"in each of {left[-1].judged:,} recorded steps"
            text = f"gradients are never cleared: the optimizer took those of all steps before as well, {steps}"
            yield self.finding("", text, left[-1].judged)


class NoBetterThanGuessing(Check):
    """The loss, a cross-entropy among C classes, is still near ln C, which a model has that gives each the same chance.

    The mean of the last quarter of all losses is compared: at least 50 losses, and 300 choices for each class. It is
    reported from nine tenths of ln C on. Classes that are not balanced can be guessed with less. Where even the best
    model can't tell much (the next base of a genome), the loss stays there in a healthy training, too.

    A loss that is divided or added to others, and one with as many classes as choices in a batch (contrastive losses),
    is not judged.
    """

    id = "HK057"
    name = "no-better-than-guessing"
    means = "a learning rate that is too low or too high, or labels that do not belong to the inputs"
    advice = "overfit one batch: if that works, check labels, else learning rate"
    follows = ("HK056",)
    needs = ("losses",)
    reads = (Learning.kind,)
    asked_by = "hookcli run --check"

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        known = [line for line in measured.lines[Learning.kind] if isinstance(line, Learning) and line.classes]
        losses = [measured.every_loss[step] for step in sorted(measured.every_loss)]
        last = losses[-(len(losses) // 4) :]
        if not known or len(losses) < _LOSSES or not all(map(math.isfinite, last)):
            return
        if measured.losses.first_jump is not None:  # HK044 or HK055 reports the jump, which is the cause
            return
        classes, items = known[0].classes, known[0].items
        guessed, mean = math.log(classes), fmean(last)
        if 1 < classes < items and len(losses) * items >= _PER_CLASS * classes and mean >= _NEAR * guessed:
            better = "hardly better" if mean < guessed else "no better"
            guess = f"that of guessing among {classes:,} classes (ln {classes:,} = {text_of(guessed)})"
            text = f"after {len(losses):,} steps the loss is {text_of(mean)}, {better} than {guess}"
            yield self.finding("", text, mean)

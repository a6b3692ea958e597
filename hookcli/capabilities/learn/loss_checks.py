"""HK057, HK062 and HK063: a loss no better than that of guessing, one that rises, and labels that are all one class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

from hookcli.capabilities.learn.checks import learned, untrained
from hookcli.capabilities.learn.curve import gone_at, rise
from hookcli.capabilities.learn.lines import EVAL, UNHELD, UNREACHED, Learning
from hookcli.checks.base import LinesCheck
from hookcli.checks.measurements import ReadsLines
from hookcli.table import Finding
from hookcli.table.formatting import loss as text_of
from hookcli.table.formatting import setting

_LOSSES, _PER_CLASS = 50, 300
_ONE_LABEL = 3  # recorded steps
_NEAR = 0.9  # of the loss of guessing
_NEAR_VARIANCE, _SQUARES = 0.95, 100
_REACH = 0.5  # of the loss of guessing: a step that goes straight down loses no more
_RATE, _SHAPE = "raise the learning rate", "give outputs and targets the same shape"
_CAUSES = ("HK056", "HK058", "HK060", "HK061", "HK031", "HK053", "HK054", "HK008")


class NoBetterThanGuessing(LinesCheck):
    """The loss is still what a model has that does not look at its input.

    A cross-entropy among C classes is then near ln C: each class gets the same chance. It is reported from nine tenths
    of ln C on. Classes that are not balanced can be guessed with less. Where even the best model can't tell much (the
    next base of a genome), the loss stays there in a healthy training, too. A mean squared error is then near the
    variance of the targets in a batch: the model returns their mean. It is reported from 95 % of the variance on, after
    100 losses, unless models also run without gradients in the steps: the targets may be theirs.

    The mean of the last quarter of all losses is compared: at least 50 losses, and 300 choices for each class. Not
    while the learning rate is warmed up. A loss that is divided or added to others, and one with as many classes as
    choices in a batch (contrastive losses), is not judged.

    The steps are too small, which mostly is a learning rate that is too low, if |gradient| |update|, summed over all
    steps, is less than half of the loss: so much it could fall to first order, had every step gone straight down.
    """

    id = "HK057"
    name = "no-better-than-guessing"
    means = "a learning rate that is too low or too high, or labels that do not belong to the inputs"
    advice = "overfit one batch: if that works, check labels, else learning rate"
    follows = _CAUSES
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        lines = learned(measured.lines)
        losses = [measured.every_loss[step] for step in sorted(measured.every_loss)]
        last = losses[-(len(losses) // 4) :]
        if len(losses) < _LOSSES or not all(map(math.isfinite, last)):
            return
        if measured.losses.first_jump is not None or warms_up(lines):  # HK044 or HK055 reports the jump: the cause
            return
        mean = fmean(last)
        guessed, guess = by_classes(lines, len(losses), mean) or by_variance(lines, len(losses), mean) or (0.0, "")
        if not guess:
            return
        better = "hardly better" if mean < guessed else "no better"
        text = f"after {len(losses):,} steps the loss is {text_of(mean)}, {better} than {guess}"
        cause, remedy = broadcast(lines), _SHAPE
        if not cause and not any(untrained(measured.lines, why) for why in (EVAL, UNREACHED, UNHELD)):
            cause, remedy = too_small(lines, len(losses), guessed), _RATE
        finding = self.finding("", f"{text}; {cause}" if cause else text, mean)
        yield replace(finding, remedy=remedy, hint=remedy) if cause else finding


def warms_up(lines: Sequence[Learning]) -> bool:
    """True if the learning rate still rises in the last recorded steps."""
    rates = [line.rate for line in lines if line.rate is not None]
    return len(rates) > 1 and rates[-1] > max(rates[-2], 2 * rates[0])


def by_classes(lines: Sequence[Learning], number: int, mean: float) -> tuple[float, str] | None:
    """The loss of guessing among classes, and words for it, if the mean loss of so many is near it."""
    known = next((line for line in lines if line.classes), None)
    if known is None or not 1 < known.classes < known.items or number * known.items < _PER_CLASS * known.classes:
        return None
    guessed, classes = math.log(known.classes), f"{known.classes:,}"
    guess = f"that of guessing among {classes} classes (ln {classes} = {text_of(guessed)})"
    return (guessed, guess) if mean >= _NEAR * guessed else None


def by_variance(lines: Sequence[Learning], number: int, mean: float) -> tuple[float, str] | None:
    """The variance of the targets, and words for it, if the mean squared error is near it."""
    spreads = [line.spread for line in lines if line.spread]
    if number < _SQUARES or not spreads or len(spreads) < len(lines):
        return None
    guessed = median(spreads)
    guess = f"that of always returning the mean of the targets (their variance is {text_of(guessed)})"
    return (guessed, guess) if mean >= _NEAR_VARIANCE * guessed else None


def broadcast(lines: Sequence[Learning]) -> str:
    """Words on outputs and targets of different shapes; "" if they have one shape."""
    shape = next((line.broadcast for line in lines if line.broadcast), "")
    return f"each output is compared with each target: both were broadcast to {shape}" if shape else ""


def too_small(lines: Sequence[Learning], number: int, guessed: float) -> str:
    """Words on steps so small that they can't have lowered the loss much; "" if they can."""
    reaches = [line.reach for line in lines if line.reach is not None]
    rates = [line.rate for line in lines if line.rate is not None]
    reach = number * fmean(reaches) if reaches else math.inf
    if reach >= _REACH * guessed or not rates:
        return ""
    most = f"{number:,} of them straight down the gradient lower it by {text_of(reach)} at most"
    return f"the steps are too small (learning rate {setting(max(rates))}): {most}"


class LossRises(LinesCheck):
    """A cross-entropy rises over the whole run.

    Judged are 64 losses or more: the means of 16 parts of the run must have a rising trend (the test of Mann and
    Kendall, three standard deviations), and the last eighth be a tenth above the first. A loss that rises while the
    learning rate is warmed up, and falls later, has no such trend. Losses of other kinds (policies, adversaries,
    penalties that grow) may rise in a healthy training, and are not judged.
    """

    id = "HK062"
    name = "loss-rises"
    means = "a sign: a loss that is maximized, or an update that is added; or a learning rate that is too high"
    advice = "check the sign of loss and update, then lower the learning rate"
    follows = _CAUSES
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        losses = [measured.every_loss[step] for step in sorted(measured.every_loss)]
        known = any(line.classes for line in learned(measured.lines))
        if not known or measured.losses.first_jump is not None or not all(map(math.isfinite, losses)):
            return
        if found := rise(losses):
            text = f"the loss rises over the whole run, from {text_of(found.before)} to {text_of(found.after)}"
            yield self.finding("", text, found.after)


class OneLabel(LinesCheck):
    """A cross-entropy falls from that of guessing to a hundredth of it within six steps, and all labels are one class.

    The model has learned to name this class, whatever its input is. Contrastive losses whose right choice always
    is the first do not fall so fast.
    """

    id = "HK063"
    name = "one-label"
    means = "labels that are lost on their way from the data, or data that are sorted by class"
    advice = "look at the labels of several batches, and shuffle the data"
    follows = ("HK058",)
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        losses = [measured.every_loss[step] for step in sorted(measured.every_loss)]
        lines = learned(measured.lines)
        known = next((line for line in lines if line.classes > 1), None)
        if known is None or len(losses) < _LOSSES or lines[-1].one_label < _ONE_LABEL:
            return
        guessed = math.log(known.classes)
        if (at := gone_at(losses, guessed)) is not None:
            fell = f"the loss fell from {text_of(losses[0])} to {text_of(losses[at])} by step {at:,}"
            steps = f"each of {lines[-1].one_label:,} recorded steps"
            text = f"all labels are one of the {known.classes:,} classes in {steps}: {fell}"
            yield self.finding("", text, losses[at])

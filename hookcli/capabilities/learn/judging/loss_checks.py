"""HK057, HK062 and HK063: a loss at the level of guessing, a rising one, and one label in all steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from hookcli.capabilities.learn.judging.causes import (
    ACTIVATION,
    MAXIMIZES,
    cause_of,
)
from hookcli.capabilities.learn.judging.changed_inputs import changed_inputs
from hookcli.capabilities.learn.judging.checks import learned
from hookcli.capabilities.learn.judging.curve import gone_at, in_steps, rise
from hookcli.capabilities.learn.judging.first_step import LOWER_RATE
from hookcli.capabilities.learn.judging.guessing import (
    LOSSES,
    as_guessed,
    guess_of,
    has_level,
    scale_of,
)
from hookcli.capabilities.learn.judging.misused_loss import filled
from hookcli.capabilities.learn.judging.small_steps import EACH_STEP, RAISE_RATE, hardly_warm, warms_up
from hookcli.capabilities.learn.lines import Learning
from hookcli.checks.base import LinesCheck
from hookcli.checks.measurements import ReadsLines
from hookcli.table import Finding
from hookcli.table.formatting import loss as text_of

_ONE_LABEL, _ALWAYS = 3, 16  # recorded steps
ONE_BATCH = (
    "overfit one batch: if that works, look at the labels, and at what layers receive "
    "(`hookcli run --trial --probe inputs,activations SCRIPT`), else at the learning rate"
)
_OF_HARD_TASKS = ("", LOWER_RATE, RAISE_RATE, ACTIVATION)
_CAUSES = ("HK056", "HK058", "HK061", "HK031", "HK053", "HK054", "HK008", "HK034")


class NoBetterThanGuessing(LinesCheck):
    """The loss is no better than that of a model that ignores its input.

    What guessing gives, and what is reported once the learning rate is no longer warmed up:
    - A cross-entropy among C classes: ln C. Reported if the loss is at least 0.97 ln C, or 0.9 ln C with a known cause.
      Of up to 128 classes that are not balanced: the entropy of how often each is a label (times its weight), if that
      is less than 0.9 ln C. Reported from 98 % of it on with a known cause alone, as every model learns these shares
      first. Not known for smoothed labels.
    - A mean squared error: the variance of the targets in a batch. Reported from 95 % of it on, after 100 losses.
      Skipped if another model runs under no_grad in the step, since it may produce the targets. Of a mean absolute
      error, or Huber's loss: that of the median of the targets. Errors that the program computes from a model's output
      itself count, too.
    - A binary cross-entropy: the entropy of the share of ones among the targets, ln 2 for half of them. Reported from
      98 % of it on, after 100 losses and 2,000 targets that all are 0 or 1. Skipped if the model has a second
      optimizer.

    Recorded losses from the second half of the run are compared with what guessing gives on the same batches, if
    classes are not balanced, or if the last two have one target a row. A loss at least 1 % lower than guessing counts
    as learning, and is reported only with a known cause; so is one whose 97.5 % confidence bound is below the level
    from which losses are reported, as with few targets. Otherwise the mean of the last quarter of the losses is used,
    once there are 50 losses and 300 predictions per class.

    Not judged, or no fault:
    - Where even the best model can tell little (the next base of a genome), the loss stays at this level in a healthy
      training, too.
    - A loss that is added to another kind of loss is not judged. The level of a sum over the batch, of a loss that is
      scaled, and of losses that are summed over several backward passes, is scaled as they are; so it is of
      cross-entropies that are added.
    - A contrastive loss, with as many classes as predictions in a batch, is not judged.
    - Adversarial training (backward passes that alternate between models) is not judged: its losses stay at this level
      when all is well.

    Causes that the finding names:
    - Steps that are too small, mostly by too low a learning rate: |gradient| |update|, summed over all steps, is how
      much the loss could fall to first order if every step went straight down. It is less than a quarter of the loss.
      If at most 1 % of the weights are trained, and the others frozen, that is said; so it is if next to no gradient
      arrives (a norm below 1e-4 of the loss).
    - A learning rate that has fallen below a hundredth of its highest in half of all steps, as by a scheduler that is
      stepped in every batch, where that sum is less than half of the loss.
    - Outputs whose mean is farther from the targets' mean than 1.4 of their standard deviations.
    - Outputs and targets of different shapes.
    - A recurrent or attention module without batch_first=True that takes the rows of the batch for a sequence.
    - A recurrent cell whose state is detached, or begins anew, at each time step.
    - With `run --trial`, rows of a batch that mix, where HK020 is sure that they must not. To see this, hookcli runs
      the model a few more times on one batch: in eval mode, and once with gradients, calling the backward of the
      program's own Functions. It does so once, after 16 steps, if the recorded losses are near this level; not for
      compiled models, for models with forward hooks of the program, or in several processes. The model, its inputs and
      random states are put back as they were; what its code changes elsewhere is not.
    - The last state of a recurrent layer that has read padding to the end in most rows: padding_idx of an nn.Embedding
      tells, or a token with which most rows end, again and again.
    - Parameters that no optimizer has, and weights that the program resets between steps.
    - A row whose output changes when the rows are put in another order, as in a model that takes the batch for the
      sequence. It is also found by --trial, if each row has one label.
    - An autograd Function of the program whose backward gives the same for every gradient, or parameters that each
      forward makes anew; both are found by --trial, too.
    - Embeddings that all get one index alone.
    - No optimizer, and a program that moves no weight itself; or an optimizer that maximizes the loss.
    - Weight decay that shrinks the weights by 5 % or more per step.
    - A first step that moves the weights of layers by 30 % of their size or more: the learning rate.
    - A dropout that drops 90 % of the values or more.
    - Inputs that lose nearly all of their values, or whose standard deviation shrinks or grows a hundredfold.
    - Inputs whose root mean square is above 20, where the first linear, convolutional or recurrent layer receives them.
    - A Tanh or Sigmoid whose outputs are nearly all at its bounds, so that next to no gradient passes it.
    - Gradients that vanish on their way to the input (HK012).
    - Gradients that are zero in all recorded steps, of at least 10 % of the weights, as before a round().

    Inputs that are the same in all rows are reported by HK066.
    """

    id = "HK057"
    name = "no-better-than-guessing"
    means = "a learning rate that is too low or too high, or labels that do not belong to the inputs"
    advice = "overfit one batch: if that works, check labels, else learning rate"
    follows = (*_CAUSES, "HK066")
    reads = (Learning.kind,)

    def too_little(self, measured: ReadsLines) -> str:
        lines = learned(measured.lines)
        if len(measured.every_loss) < LOSSES or not lines or any(map(has_level, lines)):
            return ""
        return "it is not known what guessing gives for this loss"

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        lines = learned(measured.lines)
        warms = warms_up(lines)
        if measured.losses.first_jump is not None or (warms and not hardly_warm(lines)):
            return  # HK044 or HK055 reports the jump: the cause
        number, guess = len(measured.every_loss), guess_of(lines, measured.every_loss)
        if guess is None:
            return
        text = as_guessed(guess)
        if filled(lines):
            return  # HK066 reports it
        cause, remedy = cause_of(measured.lines, number, guess.level)
        if (guess.weak or warms) and remedy in _OF_HARD_TASKS:
            return  # a model that has learned all that there is makes small steps, and a linear one may be enough
        if guess.weak and remedy == EACH_STEP:
            return
        remedy, hint = (remedy, remedy) if cause else (ONE_BATCH, f"{self.means}; {ONE_BATCH}")
        finding = self.finding("", f"{cause}; {text}" if cause else text, guess.loss)
        yield replace(finding, remedy=remedy, hint=hint)


class LossRises(LinesCheck):
    """A cross-entropy rises over the whole run.

    Judged are 64 losses or more: the means of 16 parts of the run must have a rising trend (the test of Mann and
    Kendall, three standard deviations), and the last eighth be a tenth above the first. A loss that rises while the
    learning rate is warmed up, and falls later, has no such trend. Losses of other kinds (policies, adversaries,
    penalties that grow) may rise in a healthy training, and are not judged.
    """

    id = "HK062"
    name = "loss-rises"
    means = "a sign error: a loss that is maximized, or an update that is added; or a learning rate that is too high"
    advice = "check the sign of loss and update, then lower the learning rate"
    follows = _CAUSES
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        losses = in_steps(measured.every_loss)
        known = any(line.classes for line in learned(measured.lines))
        if not known or measured.losses.first_jump is not None or not all(map(math.isfinite, losses)):
            return
        if found := rise(losses):
            text = f"the loss rises over the whole run, from {text_of(found.before)} to {text_of(found.after)}"
            lines = learned(measured.lines)
            cause = changed_inputs(lines) or MAXIMIZES * lines[-1].maximizes
            yield self.finding("", "; ".join(filter(None, (cause, text))), found.after)


class OneLabel(LinesCheck):
    """All labels are one class, so that the model learns to name this class, whatever its input is.

    Reported if a cross-entropy falls from guessing's to a hundredth of it within 16 steps, or if a layer with trained
    weights returns the scores in 16 recorded steps or more. Contrastive losses whose right choice always is the first
    do not fall so fast, and have no such layer. Labels that cross_entropy ignores do not count: an `ignore_index` the
    wrong way round leaves one class, and so do class weights of 0.
    """

    id = "HK063"
    name = "one-label"
    means = "labels that are lost on their way from the data, or data that are sorted by class"
    advice = "look at the labels of several batches, and shuffle the data"
    follows = ("HK058",)
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        losses = in_steps(measured.every_loss)
        lines = learned(measured.lines)
        known = next((line for line in lines if line.classes > 1), None)
        if known is None or len(losses) < LOSSES or lines[-1].one_label < _ONE_LABEL:
            return
        last, guessed = lines[-1], scale_of(lines) * math.log(known.classes)
        at = gone_at(losses, guessed)
        if at is None and not (last.of_layers and last.alone and last.one_label >= _ALWAYS):
            return
        reached = losses[-1 if at is None else at]
        how, by = ("went", "") if at is None else ("fell", f" by step {at:,}")
        fell = f"the loss {how} from {text_of(losses[0])} to {text_of(reached)}{by}"
        yield self.finding("", f"{of_one_class(last, known.classes)}: {fell}", reached)


def of_one_class(line: Learning, classes: int) -> str:
    """Words on labels that all are one of so many classes."""
    steps = f"in each of {line.one_label:,} recorded steps"
    if line.counted < line.number:
        ignores = f"({line.counted:,} of {line.number:,} count, and cross_entropy ignores the others)"
        return f"all labels that count are one of the {classes:,} classes {steps} {ignores}"
    if line.common_share == 1:
        return f"all labels are class {line.common} of {classes:,} {steps}"
    return f"all labels are one of the {classes:,} classes {steps}"

"""HK057, HK062, HK063 and HK066: a loss at the level of guessing, a rising one, one label, a loss not meant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from statistics import fmean, median

from hookcli.capabilities.learn.judging.causes import (
    ACTIVATION,
    MAXIMIZES,
    WITH_GRAPH,
    cause_of,
    without_graph,
)
from hookcli.capabilities.learn.judging.changed_inputs import changed_inputs
from hookcli.capabilities.learn.judging.checks import learned
from hookcli.capabilities.learn.judging.curve import gone_at, in_steps, rise
from hookcli.capabilities.learn.judging.first_step import LOWER_RATE
from hookcli.capabilities.learn.judging.guessing import (
    LOSSES,
    NEAR_VARIANCE,
    SQUARES,
    Guess,
    guess_of,
    has_level,
    level_of,
    scale_of,
)
from hookcli.capabilities.learn.judging.large_inputs import INPUTS, large_inputs
from hookcli.capabilities.learn.judging.small_steps import EACH_STEP, RAISE_RATE, hardly_warm, warms_up
from hookcli.capabilities.learn.lines import ROWS, Learning
from hookcli.checks.base import ERROR, LinesCheck
from hookcli.checks.measurements import ReadsLines
from hookcli.table import Finding
from hookcli.table.formatting import loss as text_of
from hookcli.table.formatting import number as figure

_ONE_LABEL, _ALWAYS = 3, 16  # recorded steps
_WORSE = 2.0  # times the loss of guessing
_LARGE, _AWAY, _AT_ONCE = 1000.0, 10, 16  # inputs; times the first loss; losses
_BATCHES, _MOSTLY = 5, 0.7  # recorded steps, and the share of them whose labels are one class
_QUARTER, _FURTHER = 4, 1.2  # losses
_REBUILT = 3  # recorded steps, a quarter of all, and the last one after a third of the run
_ABOVE = 1.25  # of the variance: the mean of all inputs leaves more of it than a small batch's
_BEYOND, _LOW = 0.25, 0.1  # of the targets; of the loss of guessing
_BOUNDED = "scale the targets, or leave the last activation out"
_DATA = "look at what is done to the data, as with integers that are divided"
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


def as_guessed(guess: Guess) -> str:
    """Words on losses that are near the level of guessing."""
    better = "hardly better" if guess.loss < guess.level else "no better"
    better = "far worse" if guess.loss > _WORSE * guess.level else better
    return f"{guess.which} have a mean of {text_of(guess.loss)}, {better} than {guess.words}"


def of_inputs(losses: Mapping[int, float], lines: Sequence[Learning]) -> Iterator[tuple[str, str]]:
    """The texts on inputs from which nothing is learned, as they are all the same or so large, and what to do."""
    guess = guess_of(lines, losses)
    if guess is not None and (words := filled(lines)) and (not warms_up(lines) or hardly_warm(lines)):
        yield f"{words}: {as_guessed(guess)}", _DATA
    if words := too_large(losses, lines, guessed=guess is not None):
        yield words, INPUTS


def filled(lines: Sequence[Learning]) -> str:
    """Words on inputs that tell the model nothing, as they are the same in all rows of each recorded step; else ""."""
    fills = {line.fill for line in lines}
    if "" in fills or len(lines) < _ONE_LABEL or not all(line.alike_too for line in lines):
        return ""
    steps = f"in each of {len(lines):,} recorded steps"
    one = fills.pop() if len(fills) == 1 else ROWS
    return f"all rows of a batch are the same {steps}" if one == ROWS else f"every input is {one} {steps}"


def maximized(by_step: Mapping[int, float], lines: Sequence[Learning]) -> str:
    """The text on a loss that falls further and further below zero, as the negative of another; else ""."""
    losses = [loss for loss in in_steps(by_step) if math.isfinite(loss)]
    names = {line.maximized for line in lines}
    quarter = len(losses) // 4
    if (
        len(lines) < _ONE_LABEL
        or not lines[-1].alone
        or not lines[-1].of_layers
        or quarter < _QUARTER
        or len(names) != 1
        or not (name := names.pop())
    ):
        return ""
    before, after = fmean(losses[:quarter]), fmean(losses[-quarter:])
    what = f"the loss is the negative of {name}, which grows from {text_of(-before)} to {text_of(-after)}"
    return f"{what}: it is maximized" if before < 0 and after < _FURTHER * before else ""


class MisusedLoss(LinesCheck):
    """The loss receives inputs that it does not expect, or is the wrong loss.

    Reported are:
    - A softmax or log_softmax is taken over the rows of the batch, or over a dimension of one number.
    - nll_loss gets numbers above 0, which no log-probability is.
    - All labels of a batch are the one that cross_entropy ignores, so that the loss is NaN.
    - Each of four backward passes or more divides its loss by their number, but gradients are cleared before each.
    - Batches of a DataLoader go through the model, and only the last one's graph is left for the only backward().
    - A cross-entropy gets cosines that are multiplied by less than 0.5, or by 1 or less in a last layer, so that its
      loss can't fall to 0.7 ln C.
    - The scores are N x N products of two batches of N rows, and all labels are the same, where they are 0 to N - 1.
    - gather(0, index) takes values of (N, C) from rows, though all N indices are below C, as those of columns.
    - kl_div gets the output of a softmax, or is below 0, as it is of numbers that are no log-probabilities; or its
      log_softmax is over one dimension, and its targets add up to 1 over another. Its targets must be probabilities.
    - A tenth of the targets of a binary cross-entropy are below -0.5 or above 1.5, as -1 for 0. So noise in labels of 0
      and 1 is not reported.
    - Scores (N, C, H, W) are viewed as rows of C values, where the classes must be permuted to the end; or scores
      (N, L, C) are viewed as (N, C, L).
    - Scores (T, B, C) and labels (B, T) are flattened as they are: those of T * B rows meet labels of other places.
    - N outputs and N other values are broadcast to N x N, so that each is compared with all.
    - The loss is the negative of a cross-entropy or a squared error, and falls further and further below zero.
    - The error of a reconstruction of the input is averaged, another term is summed over the batch, and the
      reconstruction is no better than the mean of the inputs.
    - Inputs whose root mean square is above 20 make the loss run away in the first steps, and nothing is learned. What
      counts is what the first linear, convolutional or recurrent layer receives; if that is not known, inputs of the
      model above 1,000.
    - Inputs are one number, or the same in all rows of a batch, and the loss is no better than guessing. So for inputs
      of four numbers a row or more, unless another input differs, or the outputs differ though the model drops nothing.
    - The labels of most batches are one class, and those of one class follow each other, or the classes come in turn:
      the data are sorted by class. Batches of one class each, in an order like those by chance, may be meant.
    - At least a quarter of the targets of a squared error, or of Huber's loss, are numbers that the ReLU, Sigmoid,
      Tanh, Softmax or Softplus at the end of the model can't return; or those of a binary cross-entropy are below 0.5,
      as no sigmoid of a ReLU is. Skipped if models also run without gradients in the steps.
    - The losses have no graph from some step on until the end of the run, so that no gradient reaches a parameter
      (an error).
    - A cross-entropy gets the input of the last layer, which has more columns than the labels have classes.
    - A padding mask hides all tokens, and shows the padding.
    - The labels are the next tokens of those that an embedding gets, and all attention over as many tokens sees the
      next one, so that the loss asks for what the model is shown.
    - The labels are the tokens after the next ones of those that an embedding gets, which is trained.
    - The labels are the tokens that all embeddings get, and attention to them is causal: the model only has to copy.
    - A label_smoothing of 0.8 or more, or a ctc_loss of something else than log-probabilities.
    """

    id = "HK066"
    name = "misused-loss"
    means = "a wrong sign or dimension, shapes that differ, or data that are sorted or not normalized"
    advice = "look at the shapes and the sign of what the loss is given"
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        if words := without_graph(measured.lines):
            yield replace(self.finding("", words), remedy=WITH_GRAPH, hint=WITH_GRAPH, severity=ERROR)
        for text, remedy in of_losses(measured.every_loss, learned(measured.lines)):
            finding = self.finding("", text)
            yield replace(finding, remedy=remedy, hint=remedy) if remedy else finding


def of_losses(losses: Mapping[int, float], lines: Sequence[Learning]) -> Iterator[tuple[str, str]]:
    """The texts on losses that are not what they should be, each with what to do, "" where the text says that."""
    if words := misused(lines):
        yield words, ""
    yield from of_inputs(losses, lines)
    if words := out_of_range(lines, losses):
        yield words, _BOUNDED
    if words := maximized(losses, lines):
        yield words, "take the minus sign away"
    if words := collapsed(len(losses), lines):
        yield words, "sum both terms over each row, and average them over the rows"
    last = lines[-1] if lines else None
    if last and last.labelled >= _BATCHES and not last.one_label and last.one_each >= _MOSTLY * last.labelled:
        of = f"in {last.one_each:,} of {last.labelled:,} recorded steps"
        text = f"all labels of a batch are one class, {of}: the data are sorted by class, and not shuffled"
        yield text, "shuffle the data"


def misused(lines: Sequence[Learning]) -> str:
    """The words on a loss that gets something else than it expects, in most recorded steps since it first did."""
    said = [*dropwhile(lambda words: not words, (line.misused for line in lines))]
    return said[0] if 2 * sum(map(bool, said)) > len(said) else ""


def out_of_range(lines: Sequence[Learning], losses: Mapping[int, float]) -> str:
    """The text on targets that the model can't return; else "". Noise may have made them, if the loss is low."""
    names, shares = {line.bounded for line in lines}, [line.beyond for line in lines]
    late = [(losses[line.step], level_of(line)) for line in lines[len(lines) // 2 :] if line.step in losses]
    if late and all(loss < _LOW * level for loss, level in late):
        return ""
    if len(lines) < _ONE_LABEL or len(names) != 1 or not min(shares) or median(shares) < _BEYOND:
        return ""
    return f"{median(shares):.0%} of the targets are numbers that the model can't return: it ends with {names.pop()}"


def too_large(losses: Mapping[int, float], lines: Sequence[Learning], *, guessed: bool) -> str:
    """The text on inputs that are so large that the loss ran away in the first steps; else "".

    `guessed`: it has come back to the level of guessing.
    """
    every = in_steps(losses)
    size = lines[0].inputs if lines else 0.0
    ran_away = any(every[0] and not abs(loss) <= _AWAY * abs(every[0]) for loss in every[:_AT_ONCE])
    words = large_inputs(lines) or (f"the inputs are large (root mean square {figure(size)})" if size >= _LARGE else "")
    alike = bool(lines) and lines[-1].alike >= _ONE_LABEL
    if not words or not ran_away or (abs(every[-1]) <= abs(every[0]) and not (guessed or alike)):
        return ""
    return f"{words}, and the loss ran away: scale them"


def collapsed(number: int, lines: Sequence[Learning]) -> str:
    """The text on reconstructions that are no better than the mean of the inputs, as another term outweighs them."""
    last = lines[-max(len(lines) // 4, _REBUILT) :]
    shares = [line.unexplained or 0.0 for line in last]
    early = len(lines) < 4 * _REBUILT or 3 * last[-1].step < number
    if number < SQUARES or early or warms_up(lines) or not last[-1].alone:
        return ""
    what = "the reconstruction is no better than the mean of the inputs"
    text = f"{what} ({median(shares):.0%} of their variance is left): {last[-1].outweighed}"
    return text if min(shares) >= NEAR_VARIANCE and max(shares) <= _ABOVE else ""


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

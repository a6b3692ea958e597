"""HK066: a loss that gets something else than it expects, from data that tell it nothing, or that is not meant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from statistics import fmean, median

from hookcli.capabilities.learn.judging.causes import WITH_GRAPH, without_graph
from hookcli.capabilities.learn.judging.checks import learned
from hookcli.capabilities.learn.judging.curve import in_steps
from hookcli.capabilities.learn.judging.guessing import NEAR_VARIANCE, SQUARES, as_guessed, guess_of, level_of
from hookcli.capabilities.learn.judging.large_inputs import INPUTS, large_inputs
from hookcli.capabilities.learn.judging.small_steps import hardly_warm, warms_up
from hookcli.capabilities.learn.lines import ROWS, Learning
from hookcli.checks.base import ERROR, LinesCheck
from hookcli.checks.measurements import ReadsLines
from hookcli.table import Finding
from hookcli.table.formatting import loss as text_of
from hookcli.table.formatting import number as figure

_ONE_LABEL = 3  # recorded steps
_LARGE, _AWAY, _AT_ONCE = 1000.0, 10, 16  # inputs; times the first loss; losses
_BATCHES, _MOSTLY = 5, 0.7  # recorded steps, and the share of them whose labels are one class
_QUARTER, _FURTHER = 4, 1.2  # losses
_REBUILT = 3  # recorded steps, a quarter of all, and the last one after a third of the run
_ABOVE = 1.25  # of the variance: the mean of all inputs leaves more of it than a small batch's
_BEYOND, _LOW = 0.25, 0.1  # of the targets; of the loss of guessing
_BOUNDED = "scale the targets, or leave the last activation out"
_DATA = "look at what is done to the data, as with integers that are divided"


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
    - Targets of 0 and 1 in a loss that expects 1 and -1: cosine_embedding_loss, hinge_embedding_loss, a margin loss.
    - Targets of ctc_loss that are its blank.
    - A tenth of the targets of a binary cross-entropy are below -0.5 or above 1.5, as -1 for 0. So noise in labels of 0
      and 1 is not reported.
    - Scores (N, C, H, W) are viewed as rows of C values, where the classes must be permuted to the end; or scores
      (N, L, C) are viewed as (N, C, L).
    - Scores (T, B, C) and labels (B, T) are flattened as they are: those of T * B rows meet labels of other places.
    - The labels are the next tokens of rows (B, T) that a recurrent or attention module takes for B steps in time.
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

"""HK056, HK058 to HK061, HK067 and HK068: what a training does with gradients, batches, parts, graphs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hookcli.capabilities.learn.judging.curve import growth
from hookcli.capabilities.learn.judging.first_step import far
from hookcli.capabilities.learn.judging.guessing import has_level
from hookcli.capabilities.learn.judging.large_inputs import large_data
from hookcli.capabilities.learn.lines import FROZEN, LOADER, ROWS, Learning, Untrained
from hookcli.checks.base import ERROR, LinesCheck
from hookcli.checks.measurements import ReadsLines
from hookcli.table import INFO, Finding
from hookcli.table.formatting import size

Lines = Mapping[str, Sequence[object]]
_STEPS, _APART = 3, 64  # recorded steps; steps between two
_CLEARED = 2  # of those that can be judged, from the second on
_LINES, _TOLD = 100, 0.2  # recorded steps, and the share of all memory that must have come: less may be hookcli's
_GRAPHS, _SPAN = 5, 10  # recorded steps, and steps


def learned(lines: Lines) -> list[Learning]:
    """The lines on how a model learns, in order."""
    return [line for line in lines[Learning.kind] if isinstance(line, Learning)]


def untrained(lines: Lines, why: str) -> Untrained | None:
    """The last line on parts that are left as they are, for this reason; None if there are none."""
    last = [x for x in lines[Untrained.kind] if isinstance(x, Untrained) and x.why == why][-1:]
    return last[0] if last and last[0].places else None


class GradientsNotCleared(LinesCheck):
    """The gradients that the optimizer took in each recorded step include all earlier steps' gradients.

    PyTorch adds the gradients of a backward pass to those that are there. Without `optimizer.zero_grad()` each step
    moves the weights along the sum of all gradients so far, most of them of weights that are long gone. Recorded steps
    are judged from the second on, once there are three; the gradients of some parameters are looked at as each backward
    pass begins. A program that clears them anywhere between two steps is not reported, nor is one that accumulates the
    gradients of several passes before a step, or that lets gradients decay after it. Models with several optimizers are
    not judged; those without one are, if the program moves their weights itself.
    """

    id = "HK056"
    name = "gradients-not-cleared"
    severity = ERROR
    means = "a training loop without optimizer.zero_grad()"
    advice = "call optimizer.zero_grad() between one step and the next"
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        left = [line for line in learned(measured.lines) if line.left]
        if left and left[-1].left == left[-1].judged >= _CLEARED:
            steps = f"in each of {left[-1].judged:,} recorded steps"
            who = "each update" if left[-1].by_hand else "the optimizer"
            text = f"gradients are never cleared: {who} also took the gradients of all earlier steps, {steps}"
            yield self.finding("", text, left[-1].judged)


class SameBatch(LinesCheck):
    """The model received the same batch, bit for bit, in each recorded step, though the program has others.

    The program is known to have others
    - if each step takes the first batch of a DataLoader that has more: `next(iter(loader))` begins anew, which gives
      the same batch unless the loader shuffles
    - if a tensor of the program has at least four times as many rows, the batch's among them, and the batch is made
      anew for each step: its rows are then drawn with the same random numbers each time

    Full-batch training, and training on one batch on purpose, keep the batch itself, or the index or mask of its rows,
    and are not reported. Nor are inputs whose rows are all the same, since other batches may be the same, too. If the
    batch was made anew and nothing is known of others, the finding is for information only.
    """

    id = "HK058"
    name = "same-batch"
    means = "an iterator that is made in each step, or random numbers that are seeded in each step"
    advice = "make the iterator once per epoch, and seed once"
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        last = learned(measured.lines)[-1:]
        for line in last if last and last[0].batches >= _STEPS and not last[0].fill else ():
            text = f"each of {line.batches:,} recorded steps saw the same batch"
            if line.source == LOADER:
                yield self.finding("", f"{text}: the first of the {line.of:,} of a DataLoader", line.batches)
            elif line.source == ROWS and line.anew:
                yield self.finding("", f"{text}: {line.rows:,} of the {line.of:,} rows of a tensor", line.batches)
            elif line.anew:
                yield replace(self.finding("", f"{text}, made anew for each", line.batches), severity=INFO)


class FrozenBlock(LinesCheck):
    """A block is frozen (requires_grad=False) between trained ones of the same class and shape.

    Judged are the parts of one container, such as the layers of a ModuleList, if most of them are trained. Frozen
    layers before the trained ones, adapters beside frozen layers, and layers that are frozen as all of their kind are,
    belong to fine-tuning and are not reported.
    """

    id = "HK059"
    name = "frozen-block"
    means = "requires_grad_(False) meant for other layers, or never undone"
    advice = "to train it, set requires_grad_(True) before creating the optimizer"
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        if line := untrained(measured.lines, FROZEN):
            trained = f"{line.detail}, which are trained{as_are_more(line.number)}"
            text = f"{line.places[0]} is frozen (requires_grad=False), {trained}"
            yield self.finding(line.places[0], text, line.number)


class FrozenStatistics(LinesCheck):
    """The running statistics of a normalization move, though it is frozen, with all that comes before it.

    Its weight and bias stay as they are, but in training mode it normalizes by each batch, and gathers statistics for
    eval mode: `model.train()` puts frozen parts into training mode as well. It is reported once the statistics have
    moved by 0.2 of the standard deviation with which the run began, as a root mean square over channels.

    Not reported are normalizations
    - that began without statistics
    - that have no parameters, or no momentum
    - that are in training mode inside a module in eval mode
    - whose weights follow another module's
    """

    id = "HK067"
    name = "frozen-statistics"
    means = "model.train() without an eval() of the frozen part after it"
    advice = "call eval() on the frozen part, after each model.train()"
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        for line in learned(measured.lines)[-1:]:
            if line.norms:
                moved = f"running statistics have moved by up to {line.drift:.2g} standard deviations since step 0"
                text = f"{line.norm} is frozen, but in training mode{as_are_more(line.norms)}: {moved}"
                yield self.finding("", text, line.drift)


class GraphsKept(LinesCheck):
    """The graphs of all recorded steps are still in memory: the program holds a loss or an output of each.

    `total += loss` keeps the graph of every loss in the sum, and a list of outputs the graphs of all outputs. So memory
    grows with each step. It is reported once the graphs of five recorded steps, all that were looked for, are still in
    memory; the graphs of the last two steps may be in use and do not count. The finding says by how much memory grows
    if that shows in the memory of the process or the device.
    """

    id = "HK060"
    name = "graphs-kept"
    means = "a sum of losses, or a list of losses or outputs, that keeps the graph of each"
    advice = "keep loss.item() or loss.detach() instead"
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        for line in learned(measured.lines)[-1:]:
            if line.graphs == line.seen >= _GRAPHS and line.step >= _SPAN:
                each = f"the graphs of all {line.seen:,} recorded steps before the last two are still in memory"
                text = f"memory grows with each step{by(learned(measured.lines))}: {each}"
                yield self.finding("", text, line.graphs)


class UnitsAlike(LinesCheck):
    """All units of a layer have the same weights, in all recorded steps, though training moves them.

    Units with the same weights return the same and get the same gradients, so that a layer of them is worth one unit.
    Judged are linear and convolutional layers, from the third recorded step on. A layer that begins at zero on purpose
    has other weights in each unit after its first step, or does not move, and is not reported.
    """

    id = "HK068"
    name = "units-alike"
    means = "weights that were all initialized to the same number"
    advice = "initialize weights at random, such as nn.init.kaiming_uniform_"
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        for line in learned(measured.lines)[-1:]:
            if line.clones and line.cloned >= _STEPS:
                steps = f"in each of {line.cloned:,} recorded steps"
                more = f", as do those of {line.layers - 1:,} more" if line.layers > 1 else ""
                text = f"all {line.clones} have the same weights{more}, {steps}: nothing tells them apart"
                yield self.finding("", text, line.layers)


def is_lasting(lines: Sequence[Learning]) -> bool:
    """True if the output was the same for all rows in the last three recorded steps, or in two that are far apart."""
    last = lines[-1].alike
    return last >= _STEPS or (last == _STEPS - 1 and lines[-1].step - lines[-2].step >= _APART)


def as_are_more(number: int) -> str:
    """Words on the others of so many places, of which one is named; "" for one alone."""
    return f", as are {number - 1:,} more" if number > 1 else ""


def by(lines: Sequence[Learning]) -> str:
    """By how much memory grows per step, in words; "" if that is too little to be told from the rest."""
    points = [(line.step, float(line.in_use)) for line in lines if line.in_use][-_LINES:]
    if not points:
        return ""
    (first, _), (last, whole) = points[0], points[-1]
    each = growth(points)
    return f", by about {size(each)}" if each * (last - first) >= _TOLD * whole else ""


class OutputAlike(LinesCheck):
    """The output is the same for every row of the batch, though the rows of the input differ.

    The model has learned a constant, or its units have died: then no gradient tells rows apart. It is reported if the
    rows were the same in the last three recorded steps or more, or in two with 64 steps between them, from the fifth
    step on: if the last layer begins with zeros, they are the same in the first step only. The check compares 32 rows
    or more of the first output that has as many rows as the input. A sigmoid that is certain of every row is not
    reported. Embeddings whose norm is 1 are the same if they differ by 1 % at most: they have collapsed.
    """

    id = "HK061"
    name = "output-alike"
    means = "dead units, a learning rate that is too high, or a layer that drops its input"
    advice = "look at dead units (hookcli activations); lower the learning rate"
    reads = (Learning.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        jumped = measured.losses.first_jump is not None  # HK044 or HK055 reports the jump, which is the cause
        lines = learned(measured.lines)
        for line in lines[-1:] if not jumped else ():
            if line.directions and any(map(has_level, lines)):
                return  # the targets may be as alike, and HK057 judges the loss
            if is_lasting(lines) and line.step >= 2 * _STEPS:
                steps = f"in each of the last {line.alike:,} recorded steps"
                words = line.padded or line.dropped or large_data(lines) or far(lines)
                same = (
                    "next to the same (embeddings of norm 1 that differ by 1% at most)"
                    if line.directions
                    else "the same"
                )
                same = f"it is {same} for every row of the batch, {steps}"
                depends = "does not depend" if line.alike >= len(lines) - 1 else "no longer depends"
                text = f"the output {depends} on the input: {same}"
                yield self.finding("", f"{words}; {text}" if words else text, line.alike)

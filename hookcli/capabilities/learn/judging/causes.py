"""Why a loss stays near the level of guessing, as far as that follows from the record."""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

from hookcli.capabilities.learn.judging.changed_inputs import COPY, changed_inputs
from hookcli.capabilities.learn.judging.checks import learned, untrained
from hookcli.capabilities.learn.judging.curve import cut_short, in_steps
from hookcli.capabilities.learn.judging.first_step import LOWER_RATE, far
from hookcli.capabilities.learn.judging.guessing import times_of
from hookcli.capabilities.learn.judging.large_inputs import INPUTS, large_data, large_inputs
from hookcli.capabilities.learn.judging.small_steps import EACH_STEP, SCHEDULE, rises_by_epoch, too_small
from hookcli.capabilities.learn.lines import (
    BLIND,
    EVAL,
    GRAPHLESS,
    IDLE,
    MISSED,
    ONE_NUMBER,
    OUTSIDE,
    UNFROZEN,
    UNHELD,
    UNREACHED,
    UNUSED,
    VALUES,
    Learning,
    Untrained,
)
from hookcli.table.formatting import loss as text_of
from hookcli.table.formatting import number as figure
from hookcli.table.formatting import setting

_BELOW, _LEFT = 0.0099, 0.1  # of the highest rate, a hundredth of which two steps of a schedule leave; of the reach
_SHARE = 0.05  # of the weights, that weight decay takes in a step: a usual one takes less than 0.001
_REACH_THEM = "run them with gradients, or freeze them"
_MUCH = 2.0  # times the variance of the targets, of the squared distance between the means
_SCALE = "standardize the targets to mean 0 and standard deviation 1"
_HARDLY = 0.01  # of the size of the inputs, by which they vary
_OPTIMIZER, _DECAY = "give these parameters to the optimizer, or freeze them", "lower weight_decay"
BATCH_FIRST = "give batch_first=True"
_FLAT = "look for round(), a comparison or a clamp after them, or dead units"
_HELD_UP = {
    "saturated": "scale the initialisation or the inputs down",
    "vanish": "use shortcuts, normalization, or another initialization",
}
_PLATEAU = "ReduceLROnPlateau of a loss wants mode='min'"
_SEEN = 4  # times the last recorded step: a run of more steps may have been another one since
_OFTEN, _QUARTER, _LOWER = 3, 4, 0.9  # times; losses; times the first losses, above which the last ones are not lower
_STATE = "hand the state on from one time step to the next"
LENGTHS = "pack the rows by their lengths (pack_padded_sequence), or read each row's last token"
_DROP = "lower p, which is the share of values to drop"
WITH_GRAPH = "call the model outside no_grad, and backward() on the loss as it is"
MAXIMIZES = "the optimizer maximizes the loss (maximize=True)"
_IN_PLACE = "make an optimizer and call its step(), or change the weights in place: p.sub_(lr * p.grad) under no_grad"
ACTIVATION = "put an activation function between them, such as ReLU"
_SEVERAL, _ERRORS = 5, 4.0  # recorded steps; standard errors
_NOISE = "give the loss the noise that was added to the input, not another draw"
_INDICES = "look at how the indices are made: scaled categories all become 0"
_TRIED = {
    "grad_output": "multiply by grad_output in backward, and try torch.autograd.gradcheck",
    "new parameter": "make the layer once, in __init__",
}
_ROWS = "keep each row of the batch by itself: look for dim=0, and for a view that should be a permute"
_ONCE = "initialize or load weights once, before the loop"
_SHAPE = "give outputs and targets the same shape"


def cause_of(of_model: Mapping[str, Sequence[object]], number: int, guessed: float) -> tuple[str, str]:
    """Words on why a loss stays near the level of guessing, and what to do; "", "" where that does not follow."""
    lines = learned(of_model)
    if words := overwritten(lines, number):
        return words, _ONCE
    if words := broadcast(lines):
        return words, _SHAPE
    for known in (of_rows(lines), of_updates(lines)):
        if any(known):
            return known
    for why in (OUTSIDE, MISSED, UNFROZEN):
        if line := untrained(of_model, why):
            return not_held(line), _OPTIMIZER
    if line := untrained(of_model, BLIND):
        return not_reached(line), _REACH_THEM
    if any(untrained(of_model, why) for why in (EVAL, UNREACHED, VALUES, UNUSED, UNHELD, IDLE)):
        return "", ""
    small = too_small(lines, number, guessed)
    dropped = lines[-1].dropped if lines else ""
    data = (
        (one_index(lines), _INDICES),
        (without_activation(lines), ACTIVATION),
        (other_noise(lines), _NOISE),
        (apart(lines, guessed), _SCALE),
        (changed_inputs(lines), COPY),
        (hardly_varied(lines), INPUTS),
    )
    values = ((dropped, _DROP), (large_data(lines), INPUTS))
    rising = (rises_by_epoch(lines), EACH_STEP)
    reasons = (*data, held_up(lines), small, (decays(lines), _DECAY), *values, (far(lines), LOWER_RATE), rising)
    return next((reason for reason in reasons if reason[0]), ("", ""))


def held_up(lines: Sequence[Learning]) -> tuple[str, str]:
    """Words on what holds gradients up after a quarter of the steps, and what to do; "", "" if nothing does.

    Not where large inputs are the reason, and not a softmax over one number, which a remark tells of.
    """
    late = [line for line in lines if 4 * line.step >= lines[-1].step]
    if not late or large_inputs(lines) or not all(line.held_up for line in late):
        return "", ""
    words = late[-1].held_up
    if words.startswith(ONE_NUMBER):
        return "", ""
    return words, next((advice for word, advice in _HELD_UP.items() if word in words), _FLAT)


def of_rows(lines: Sequence[Learning]) -> tuple[str, str]:
    """Words on a module that reads sequences along the batch, loses a state or mixes rows; "", "" if none does."""
    if taken := over_batch(lines):
        return f"{taken[0].over_batch}: {BATCH_FIRST}", BATCH_FIRST
    if lines and all(line.states for line in lines):
        return lines[0].states, _STATE
    if lines and lines[-1].tried:
        return lines[-1].tried, next((advice for word, advice in _TRIED.items() if word in lines[-1].tried), _ROWS)
    if words := reads_padding(lines):
        return words, LENGTHS
    return "", ""


def reads_padding(lines: Sequence[Learning]) -> str:
    """Words on a layer that reads a last state which padding has made in most rows, and what to do; "" if none does."""
    return f"{lines[-1].padded}: {LENGTHS}" if lines and all(line.padded for line in lines) else ""


def over_batch(lines: Sequence[Learning]) -> Sequence[Learning]:
    """The recorded steps in which a module took the batch for a sequence; none if these are not most.

    The last batch of an epoch may have as many rows as the sequences have places, or half as many.
    """
    taken = [line for line in lines if line.over_batch]
    return taken if 2 * len(taken) > len(lines) else []


def of_updates(lines: Sequence[Learning]) -> tuple[str, str]:
    """Words on updates along the gradient, or on a program that makes none; "", "" if neither is so."""
    last = lines[-1] if lines else None
    if last and last.maximizes:
        return MAXIMIZES, "leave maximize=True out"
    if last and last.by_hand and last.unmoved >= max(_SEVERAL, len(lines) - 1):
        return f"no optimizer has the weights, and the program moves none in {len(lines):,} recorded steps", _IN_PLACE
    return "", ""


def one_index(lines: Sequence[Learning]) -> str:
    """Words on embeddings that get one index alone in every recorded step; "" if they do not."""
    if len(lines) < _SEVERAL or not all(line.one_index for line in lines):
        return ""
    return f"{lines[0].one_index}, like every embedding, gets one and the same index for all rows in each recorded step"


def without_activation(lines: Sequence[Learning]) -> str:
    """Words on a model of several layers that is linear in its input; "" for others."""
    number = lines[-1].linear if lines else 0
    one = f"the {number:,} layers with weights do what one linear layer does"
    return f"no activation function stands between layers: {one}" if number > 1 else ""


def other_noise(lines: Sequence[Learning]) -> str:
    """Words on targets that are noise, and not that of the input, in every recorded step; "" if they are not."""
    number = sum(line.noise for line in lines)
    if len(lines) < _SEVERAL or not all(line.noise for line in lines):
        return ""
    if abs(fmean(line.in_input for line in lines)) > _ERRORS / math.sqrt(number):
        return ""
    return "the targets are noise as of torch.randn that the input, of the same size, does not contain"


def apart(lines: Sequence[Learning], guessed: float) -> str:
    """Words on outputs that are far from the targets on average, in the recorded steps of the later half; else ""."""
    late = lines[len(lines) // 2 :] if not large_inputs(lines) else []  # which make the outputs large
    pairs = [(line.returned, line.expected) for line in late if line.returned is not None and line.expected is not None]
    times = median(times_of(line) for line in late) if late else 1.0
    if not pairs or len(pairs) < len(late):
        return ""
    power = 1 if late[-1].absolute or late[-1].rooted else 2
    if times * min(abs(a - b) ** power for a, b in pairs) < _MUCH * guessed:
        return ""
    returned, expected = (figure(median(means)) for means in zip(*pairs, strict=True))
    return f"the outputs are {returned} on average, and the targets {expected}"


def hardly_varied(lines: Sequence[Learning]) -> str:
    """Words on inputs that differ by next to nothing from row to row in every recorded step; "" if they do not."""
    plain = [line for line in lines if line.entered > line.inputs / 2]  # nothing normalizes them before the first layer
    shares = [line.varied for line in plain if line.varied is not None]
    if len(shares) < len(lines) or not 0 < max(shares, default=0.0) <= _HARDLY:
        return ""
    return f"the inputs hardly differ from row to row: their standard deviation is {max(shares):.2g} of their size"


_WHY = {
    UNREACHED: "something between them and the loss detaches",
    BLIND: "they run without gradients (torch.no_grad)",
    UNUSED: "the loss does not use what they return, or something detaches it",
}


def not_reached(line: Untrained) -> str:
    """Words on parameters of an optimizer that never get a gradient."""
    of = f"{line.number:,} of the {line.detail} parameters of the optimizer"
    return f"no gradient reaches {', '.join(line.places)} ({of}): {_WHY[line.why]}"


def without_graph(lines: Mapping[str, Sequence[object]]) -> str:
    """Words on losses that have no graph, up to the end of the run, so that nothing is learned; "" if they have one."""
    line = untrained(lines, GRAPHLESS)
    if line is None:
        return ""
    return f"no gradient reaches any of the {line.number:,} parameters of the optimizer {line.detail}"


def not_held(line: Untrained) -> str:
    """Words on parameters that no optimizer has."""
    of = f"{line.number:,} of the {line.detail} parameters that get a gradient"
    return f"no optimizer has {', '.join(line.places)}{', ...' * (line.number > len(line.places))} ({of})"


def stays(lines: Sequence[Learning], losses: Mapping[int, float]) -> bool:
    """True if the loss gets no lower, of a choice among classes or the like, by one model with one optimizer.

    Policies, and the tasks of few-shot learning, may begin again on purpose.
    """
    every = in_steps(losses)
    quarter = len(every) // 4
    if quarter < _QUARTER or not lines[-1:] or not lines[-1].alone or not any(map(is_supervised, lines)):
        return False
    first, late = fmean(every[:quarter]), fmean(every[-quarter:])
    return late >= _LOWER * first > 0


def overwritten(lines: Sequence[Learning], number: int) -> str:
    """Words on weights that the program sets anew between steps, until late in the recorded ones; else ""."""
    last = lines[-1] if lines else None
    if last is None or max(last.restored, last.overwritten) < _OFTEN:
        return ""
    if 2 * last.written_at < last.step or _SEEN * last.step < number:
        return ""
    if last.restored >= _OFTEN:
        seen = f"(seen {last.restored:,} times, the last one by step {last.written_at:,})"
        why = "is an average of them (EMA) swapped in, and never back?" if last.nearly else "what is learned is lost"
        to = "next to their values" if last.nearly else "to their values"
        return f"the weights are set back {to} of step 0 again and again {seen}: {why}"
    seen = f"(seen {last.overwritten:,} times, the last one by step {last.written_at:,})"
    moves = f"{last.weight} moves by {last.away:.0%} of its size, where a step moves it by {last.moved:.2%} at most"
    return f"the program itself sets weights anew again and again {seen}: {moves}"


def is_supervised(line: Learning) -> bool:
    """True if the loss is a cross-entropy, or compares outputs with targets."""
    return any(known is not None for known in (line.scaled, line.spread, line.ones))


def decays(lines: Sequence[Learning]) -> str:
    """Words on a weight decay that takes much of the weights in each step; "" if it does not."""
    shares = [line.decay for line in lines if line.decay is not None]
    share = median(shares) if shares else 0.0
    return f"weight decay takes {share:.0%} of the weights in each step" if share >= _SHARE else ""


def broadcast(lines: Sequence[Learning]) -> str:
    """Words on outputs and targets of different shapes; "" if they have one shape."""
    shape = next((line.broadcast for line in lines if line.broadcast), "")
    return f"each output is compared with each target: both were broadcast to {shape}" if shape else ""


def fallen_early(lines: Sequence[Learning], losses: Mapping[int, float]) -> str:
    """Words on a learning rate that fell to next to nothing in the first half of a run, which ended learning; else "".

    A schedule that ends at 0 on purpose does so at the end of a run.
    """
    known = [(line.step, line.rate, line.reach) for line in lines if line.rate is not None and line.reach is not None]
    steps = sorted(step for step, loss in losses.items() if math.isfinite(loss))
    low = next_to_nothing(known)
    if not low or 2 * low[0][0] > steps[-1] or not lines[-1].alone or not any(map(is_supervised, lines)):
        return ""
    at, rate, _ = low[0]
    before = [(losses[a], (b - a) * known[max(bisect(known, (a, math.inf)) - 1, 0)][1]) for a, b in pairwise(steps)]
    first_after = bisect_left(steps, at)
    ended = cut_short(before[:first_after], [losses[step] for step in steps[first_after:]])
    if ended is None:
        return ""
    highest = max(rate for _, rate, _ in known)
    fell = f"the learning rate had fallen to {setting(rate)} by step {at:,}, from {setting(highest)}"
    to = f"from {text_of(ended.before)} to {text_of(ended.after)}"
    return f"{fell}, and the loss, which has fallen {to}, falls no further since: {SCHEDULE} ({_PLATEAU})"


def next_to_nothing(steps: Sequence[tuple[int, float, float]]) -> Sequence[tuple[int, float, float]]:
    """The last steps in a row whose rate and reach are next to nothing of the highest; all are (step, rate, reach).

    Where other parameter groups keep their rates, the reach of a step does not fall.
    """
    _, rates, reaches = zip(*steps, strict=True) if steps else ((), (), ())
    high = [rate >= _BELOW * max(rates) or reach >= _LEFT * max(reaches) for _, rate, reach in steps]
    return steps[len(high) - [*reversed(high), True].index(True) :]

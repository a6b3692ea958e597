"""Steps that are so small that they can't have lowered the loss much, and why they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from math import isclose
from statistics import mean, median

from hookcli.capabilities.learn.lines import Learning
from hookcli.table.formatting import number as figure
from hookcli.table.formatting import setting

_TOO_SMALL = 0.25  # of the loss of guessing, which all steps lose at most: at best, three quarters of it are left
_REACH, _FALLEN, _HALF = 0.5, 0.01, 0.5  # as much, where half of the steps had less than this of the highest rate
_CLIP = "clip gradients at a larger norm"
_CLIPPED = 0.01  # of what they were
_STEADY, _ROUNDED = 3, 1e-4  # recorded steps, and the share by which a norm may be off
_UNSCALE = "call scaler.unscale_(optimizer) before clipping"
_FAINT, _VANISHES = 1e-4, "look in which layer the gradient vanishes, and at how the layers are initialized"
_COLD, _WARM_UP = 0.01, "count the warm-up in calls of scheduler.step()"  # of the rate that it leads to
_STEPWISE, EACH_STEP = 0.1, "call scheduler.step() after each optimizer.step()"  # of the steps, after which it rises
_FACTOR = "let LambdaLR's function return a factor, not a rate"
_TWICE, _DIVIDED = 4, "divide each loss once, by the number of passes"  # passes: of fewer the factor may be meant
_FROZEN = 0.01  # of the weights: as few are trained
SCHEDULE = "step the scheduler once per epoch, or let the rate fall later"
RAISE_RATE = "raise the learning rate"


def warms_up(lines: Sequence[Learning]) -> bool:
    """True if the learning rate still rises in the last recorded steps."""
    rates = [line.rate for line in lines if line.rate is not None]
    return len(rates) > 1 and rates[-1] > max(rates[-2], 2 * rates[0])


def hardly_warm(lines: Sequence[Learning]) -> str:
    """Words on a warm-up that has come to next to nothing of the rate to which a scheduler leads; "" if it has not."""
    rates = [(line.rate, line.initial) for line in lines if line.rate is not None and line.initial]
    if len(rates) < max(_STEADY, len(lines)) or any(after < before for (before, _), (after, _) in pairwise(rates)):
        return ""
    last, initial = rates[-1]
    if not 0 < last <= _COLD * initial or not warms_up(lines):
        return ""
    share = f"{100 * last / initial:.2g}% of the scheduler's {setting(initial)}"
    return f"the warm-up has come to a learning rate of {setting(last)} by step {lines[-1].step:,}, {share}"


def rises_by_epoch(lines: Sequence[Learning]) -> str:
    """Words on a learning rate that has risen up to the end, but stays for many steps at a time; "" if it does not."""
    rates = [(line.step, line.rate) for line in lines if line.rate is not None]
    number = len({rate for _, rate in rates})
    if number < _STEADY or any(after < before for (_, before), (_, after) in pairwise(rates)):
        return ""
    rises = [after > before for (one, before), (other, after) in pairwise(rates) if other == one + 1]
    (_, first), (last, rate) = rates[0], rates[-1]
    if not rises or mean(rises) > _STEPWISE or rate < 2 * first:
        return ""
    return f"the learning rate still rises, to {setting(rate)} by step {last:,}, but not from one step to the next"


def divided_twice(lines: Sequence[Learning]) -> str:
    """Words on losses of several backward passes, each divided by the square of their number; "" if they are not."""
    known = [(line.passes, line.scaled) for line in lines if line.scaled is not None]
    if not known or any(
        passes < _TWICE or not isclose(scaled * passes, 1, rel_tol=_ROUNDED) for passes, scaled in known
    ):
        return ""
    passes = known[-1][0]
    return f"each of {passes:,} backward passes divides its loss by {passes**2:,}: twice by their number"


def too_small(lines: Sequence[Learning], number: int, guessed: float) -> tuple[str, str]:
    """Words on steps so small that they can't have lowered the loss much, and what to do; "", "" if they can."""
    reaches, rates = (over_steps([getattr(line, name) for line in lines], lines, number) for name in ("reach", "rate"))
    reach = number * mean_of(reaches) if reaches else math.inf
    if not 0 < reach < _REACH * guessed or not rates:  # 0 where weights do not move at all
        return "", ""
    highest, last = max(rates)[0], rates[-1][0]
    at = max(line.step for line in lines if line.rate is not None)
    if mean_of([(rate < _FALLEN * highest, share) for rate, share in rates]) >= _HALF:
        return f"the learning rate has fallen to {setting(last)} by step {at:,}, from {setting(highest)}", SCHEDULE
    if reach >= _TOO_SMALL * guessed:
        return "", ""
    rate = setting(highest) if last == highest else f"{setting(highest)}, in the end {setting(last)}"
    most = f"{number:,} updates this small can lower the loss by only about {reach:.2g}"
    reasons = (
        (clipped_scaled(lines), _UNSCALE),
        (clipped(lines), _CLIP),
        (faint(lines, guessed), _VANISHES),
        (rises_by_epoch(lines), EACH_STEP),
        (hardly_warm(lines), _WARM_UP),
        (scaled_away(lines, rate), _FACTOR),
        (divided_twice(lines), _DIVIDED),
        (few_trained(lines, rate), "unfreeze more of the model, or raise the learning rate"),
        (f"learning rate {rate}", RAISE_RATE),
    )
    why, remedy = next(one for one in reasons if one[0])
    return f"the steps are too small ({why}): {most}", remedy


def scaled_away(lines: Sequence[Learning], rate: str) -> str:
    """Words on a scheduler that never leaves more than a hundredth of the optimizer's rate; "" if it does."""
    initial, rates = lines[0].initial, [line.rate for line in lines if line.rate is not None]
    if initial is None or not rates or max(rates) > _COLD * initial:
        return ""
    factor = f"{max(rates) / initial:.2g} at most"
    return f"learning rate {rate}: the scheduler multiplies the optimizer's {setting(initial)} by {factor}"


def faint(lines: Sequence[Learning], guessed: float) -> str:
    """Words on gradients that are next to zero beside the loss, in the recorded steps of the later half; else ""."""
    norms = [line.gradient for line in lines[len(lines) // 2 :] if line.gradient is not None]
    if not norms or median(norms) > _FAINT * guessed:
        return ""
    return f"next to no gradient arrives, a norm of {figure(median(norms))}"


def few_trained(lines: Sequence[Learning], rate: str) -> str:
    """Words on a model that is frozen but for next to nothing; "" for others."""
    last = lines[-1]
    if not 0 < last.trained <= _FROZEN * last.numel:
        return ""
    return f"{last.trained:,} of {last.numel:,} weights are trained, with a learning rate of {rate}"


def over_steps(figures: Sequence[float | None], lines: Sequence[Learning], number: int) -> list[tuple[float, int]]:
    """The figures that are known, each with the number of steps for which its line stands: those until the next."""
    ends = [*(line.step for line in lines[1:]), number]
    spans = [max(end - line.step, 1) for line, end in zip(lines, ends, strict=True)]
    return [(figure, span) for figure, span in zip(figures, spans, strict=True) if figure is not None]


def mean_of(weighted: Sequence[tuple[float, int]]) -> float:
    """The mean of numbers, each with its weight."""
    return sum(x * weight for x, weight in weighted) / sum(weight for _, weight in weighted)


def clipped(lines: Sequence[Learning]) -> str:
    """Words on gradients of which next to nothing is left as they are clipped; "" if that is not so."""
    norms = [(line.gradient, line.unclipped) for line in lines if line.gradient and line.unclipped]
    if not norms or median(after / before for after, before in norms) > _CLIPPED:
        return ""
    after, before = (figure(median(figures)) for figures in zip(*norms, strict=True))
    return f"gradients are clipped from a norm of {before} to {after}"


def clipped_scaled(lines: Sequence[Learning]) -> str:
    """Words on gradients that are clipped while a GradScaler's scale is in them; "" if that is not known.

    Times the scale, the norm that the optimizer took is the same in each recorded step: one as people write it, or one
    that stays as the scale changes. Without the scale it is neither.
    """
    known = [(line.gradient, line.gradient * line.scale) for line in lines if line.gradient and line.scale]
    if len(known) < max(_STEADY, len(lines)) or not clipped(lines):
        return ""
    taken, scaled = zip(*known, strict=True)
    if not is_steady(scaled) or (is_steady(taken) and (is_round(taken[-1]) or not is_round(scaled[-1]))):
        return ""
    last = lines[-1]
    to = f"to a norm of {figure(scaled[-1])} with the GradScaler's scale of {last.scale:,.0f} in it"
    return f"gradients are clipped before unscale_: {to}, which leaves {figure(taken[-1])} of {figure(last.unclipped)}"


def is_steady(norms: Sequence[float]) -> bool:
    """True if all norms are the same, but for rounding."""
    return max(norms) - min(norms) <= _ROUNDED * max(norms)


def is_round(norm: float) -> bool:
    """True if two digits write this norm, as people do who choose one."""
    return abs(norm - float(f"{norm:.1e}")) <= _ROUNDED * norm

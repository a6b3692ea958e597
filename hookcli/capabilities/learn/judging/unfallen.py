"""The remark on a loss that has not fallen, where no cause is named: silence would pass for a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from hookcli.capabilities.learn.judging.checks import learned
from hookcli.capabilities.learn.judging.curve import LEAST, in_steps, trend
from hookcli.capabilities.learn.judging.guessing import LOSSES, SQUARES, as_guessed, guess_of, has_level
from hookcli.capabilities.learn.judging.small_steps import too_small
from hookcli.checks.measurements import Measurements
from hookcli.table.formatting import loss as text_of

_NO_CAUSE = "hookcli sees no cause: a fault that it does not know, or a task with little to learn"
_FALLS = -2.0  # standard deviations of a loss's trend
_MUCH = 0.2  # of the loss, at which steps that can lower it by a quarter of this are too small
_LITTLE = 0.7  # of the first losses
_FIRST, _NOISE = 4, 3.0  # losses at the beginning; standard errors of their mean
_UNKNOWN = "what guessing gives is not known for this loss, so hookcli can't tell whether it should fall"


def unfallen(measured: Measurements) -> str:
    """The loss has hardly fallen: 0.8200 → 0.8044 (means of the first and last 100 of 400 steps); what guessing ...

    "" where it has, or where it need not: of models that are trained against each other, or far below guessing's.
    """
    lines, losses = learned(measured.lines), in_steps(measured.every_loss)
    jumped = measured.losses is not None and measured.losses.first_jump is not None  # which another line says
    if not lines or not lines[-1].alone or jumped or not all(map(math.isfinite, losses)):
        return ""
    if guess := guess_of(lines, measured.every_loss):
        return f"{as_guessed(guess)}, and {_NO_CAUSE}"
    if falls(losses) or has_both_signs(losses):
        return ""
    needed = LOSSES if any(line.classes for line in lines) else SQUARES
    why = f"hookcli looks for a cause after {needed} steps" * (len(losses) < needed)
    if not any(map(has_level, lines)):
        why = too_small(lines, len(losses), _MUCH * abs(fmean(losses)))[0] or _UNKNOWN
    return f"{text_on(losses)}; {why}" if why else ""


def has_both_signs(losses: Sequence[float]) -> bool:
    """True if a loss is above 0 and below it all along, as that of a policy gradient is, which need not fall."""
    quarter = len(losses) // 4
    return all(min(part, default=0.0) < 0 < max(part, default=0.0) for part in (losses[:quarter], losses[-quarter:]))


def tried(measured: Measurements) -> str:
    """What `--trial` has found in a model whose loss has not fallen, where it is not known what guessing gives."""
    lines, losses = learned(measured.lines), in_steps(measured.every_loss)
    found = lines[-1].tried if lines and not any(map(has_level, lines)) else ""
    return f"{found}; {text_on(losses)}" if found and not falls(losses) else ""


def text_on(losses: Sequence[float]) -> str:
    """Words on a loss that has not fallen."""
    quarter = len(losses) // 4
    first, last = fmean(losses[:quarter]), fmean(losses[-quarter:])
    has = "has hardly fallen" if last < first else "has not fallen"
    means = f"means of the first and last {quarter:,} of {len(losses):,} steps"
    return f"the loss {has}: {text_of(first)} → {text_of(last)} ({means})"


def falls_much(by_step: Mapping[int, float]) -> bool:
    """True if the last losses are less than 0.7 of the first ones."""
    losses = in_steps(by_step)
    late = losses[-max(len(losses) // 4, 1) :]
    return bool(late) and fmean(late) < _LITTLE * fmean(losses[:_FIRST])


def falls(losses: Sequence[float]) -> bool:
    """True if losses fall, or have fallen at once; or if there are too few to tell."""
    if len(losses) < LEAST:
        return True
    late = losses[-(len(losses) // 4) :]
    at_once = fmean(losses[:_FIRST]) - fmean(late) > _NOISE * stdev(late) / math.sqrt(_FIRST)
    return at_once or trend(losses) <= _FALLS

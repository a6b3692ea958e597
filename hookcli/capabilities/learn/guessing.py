"""The loss that guessing has, and whether a training's is near it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from hookcli.capabilities.learn.lines import Learning
from hookcli.table.formatting import loss as text_of

LOSSES = 50
_PER_CLASS = 300
_NEAR = 0.9  # of the loss of guessing
NEAR_VARIANCE, SQUARES = 0.95, 100
_NEAR_BINARY, _TARGETS, _RARE = 0.98, 2000, 0.02
_BESIDE = 3  # recorded steps of the later half
_ROUNDED = 1e-4  # of the sum of factors
_WEAK = 0.99  # of the loss of guessing, on the same batches
_DEVIATIONS = 2.0  # of a share of ones that few targets tell


class Guess(NamedTuple):
    """A `loss` near the level of guessing, the `level`, and words for it.

    `weak`: it is a little lower, on the very same batches, so that the model has learned what little there may be.
    """

    loss: float
    level: float
    words: str
    weak: bool = False


def has_level(line: Learning) -> bool:
    """True if a recorded step shows what guessing gives: of classes, of squared errors or of binary targets."""
    return bool(line.classes or line.spread or line.ones is not None)


def guess_of(lines: Sequence[Learning], losses: Mapping[int, float]) -> Guess | None:
    """The guess that a training is near; None if it is not, or if that is not known. `losses`: all steps' losses.

    The mean of the last quarter of the losses is judged; beside the targets of the batches, the losses of these.
    """
    number, steps = len(losses), sorted(losses)
    last = [losses[step] for step in steps[-(number // 4) :]]
    if number < LOSSES or not lines or not all(map(math.isfinite, last)):
        return None
    mean = fmean(last)
    late = {step: losses[step] for step in steps[number // 2 :] if math.isfinite(losses[step])}
    if guess := by_classes(lines, number, mean, late):
        return guess
    return by_variance(lines, number, mean, late) or by_ones(lines, number, mean, late)


def by_classes(lines: Sequence[Learning], number: int, mean: float, late: Mapping[int, float]) -> Guess | None:
    """The guess among classes, if the mean loss of so many is near its loss."""
    known = next((line for line in lines if line.classes), None)
    later = [line.scaled for line in lines[len(lines) // 2 :]]
    if (
        known is None
        or (known.scaled is not None and None in later)  # another loss by then
        or not lines[-1].alone
        or not 1 < known.classes < known.items
        or number * known.items < _PER_CLASS * known.classes
    ):
        return None
    one = math.log(known.classes)
    loss, level = beside_sums(lines, late, one) or (mean, one * scale_of(lines))
    words = (
        f"guessing among {known.classes:,} classes ({times_text(level / one)}ln {known.classes:,} = {text_of(level)})"
    )
    return Guess(loss, level, words) if loss >= _NEAR * level else None


def beside_sums(lines: Sequence[Learning], late: Mapping[int, float], one: float) -> tuple[float, float] | None:
    """As `beside`, where `one` is the level of a mean, which counts more in some steps than in others; else None."""
    scales = {line.step: line.scaled for line in lines if line.scaled is not None}
    if not scales or math.isclose(min(scales.values()), max(scales.values()), rel_tol=_ROUNDED):
        return None
    return beside([line for line in lines if line.step in scales], late, lambda line: one * scales[line.step])


def times_text(times: float, word: str = "") -> str:
    """A factor, and a word, before what it multiplies; "" for 1."""
    return "" if math.isclose(times, 1, rel_tol=_ROUNDED) else f"{times:.4g} {word}"


def scale_of(lines: Sequence[Learning]) -> float:
    """How often a mean cross-entropy counts in the loss of a step, at most."""
    return max((line.scaled for line in lines if line.scaled is not None), default=1.0)


def times_of(line: Learning) -> float:
    """How often the mean of squared errors, or of binary cross-entropies, counts in the loss of a step."""
    return 1.0 if line.times is None else line.times


def by_variance(lines: Sequence[Learning], number: int, mean: float, late: Mapping[int, float]) -> Guess | None:
    """The guess that is always the mean of the targets, if the mean squared error is near its loss, their variance."""
    spreads = [line.spread for line in lines if line.spread]
    if number < SQUARES or not spreads or len(spreads) < len(lines):
        return None
    centers = [line.center for line in lines if line.center is not None]
    middle = fmean(centers) if len(centers) == len(lines) else None

    def level_of(line: Learning) -> float:
        away = 0.0 if middle is None or line.center is None else line.center - middle
        return times_of(line) * ((line.spread or 0.0) + away**2)

    found = beside(lines, late, level_of) if middle is not None else None
    loss, level = found or (mean, median(times_of(line) * (line.spread or 0.0) for line in lines))
    times = times_text(fmean(map(times_of, lines)), "times ")
    words = f"always returning the mean of the targets ({times}their variance is {text_of(level)})"
    weak = found is not None and loss < _WEAK * level
    return Guess(loss, level, words, weak) if loss >= NEAR_VARIANCE * level else None


def by_ones(lines: Sequence[Learning], number: int, mean: float, late: Mapping[int, float]) -> Guess | None:
    """The guess by the share of ones among the targets, if the mean loss is near its loss.

    Two models that work against each other stay there when all is well.
    """
    ones = [line.ones for line in lines if line.ones is not None]
    targets = lines[0].targets
    if number < SQUARES or not ones or len(ones) < len(lines) or not lines[-1].alone or number * targets < _TARGETS:
        return None
    share = fmean(ones)
    if not _RARE <= share <= 1 - _RARE:
        return None
    of_one, of_zero = -math.log(share), -math.log(1 - share)
    found = beside(lines, late, lambda line: times_of(line) * ((line.ones or 0.0) * (of_one - of_zero) + of_zero))
    times = fmean(map(times_of, lines))
    loss, level = found or (mean, times * (share * of_one + (1 - share) * of_zero))
    words = f"guessing ({text_of(level)}, as {share:.0%} of the targets are 1)"
    deviation = math.sqrt(share * (1 - share) / (targets * len(ones)))
    unsure = 0.0 if found else times * abs(of_one - of_zero) * deviation
    weak = found is not None and loss < _WEAK * level
    return Guess(loss, level, words, weak) if loss >= _NEAR_BINARY * (level + _DEVIATIONS * unsure) else None


def beside(
    lines: Sequence[Learning], late: Mapping[int, float], level_of: Callable[[Learning], float]
) -> tuple[float, float] | None:
    """The mean loss of the recorded steps in the later half, and guessing's on the same batches; None for few."""
    pairs = [(late[line.step], level_of(line)) for line in lines if line.step in late]
    if len(pairs) < _BESIDE:
        return None
    return fmean(loss for loss, _ in pairs), fmean(level for _, level in pairs)

"""Tests on the whole curve of a loss, which is noisy: no two of its points are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from statistics import fmean, median, stdev
from typing import NamedTuple

LEAST = 16  # losses, and the parts into which they are cut
_Z = 3.0  # standard deviations of the sum below, for losses without a trend
_HIGHER = 1.1
_NOTHING = 0.01  # of the loss of guessing
_POINTS = 5
_AT_ONCE, _MOSTLY = 16, 0.9  # the losses within which that is reached, and the share of those after it

_SPANS, _IN_SPAN, _AFTER = 3, 4, 8  # of equal sums of rates; losses in each, and in each half of those after
_GOES_ON, _ENDS, _FLOOR = 0.6, 0.05, 0.1


class Rise(NamedTuple):
    """The mean loss of the first and of the last part of a run."""

    before: float
    after: float


def in_steps(losses: Mapping[int, float]) -> list[float]:
    """The losses in the order of their steps."""
    return [loss for _, loss in sorted(losses.items())]


def rise(losses: Sequence[float]) -> Rise | None:
    """How a loss that rises over the whole run does so; None if it does not.

    Test: Mann and Kendall's, on the means of 16 blocks, whose noise is nearly independent. A loss that rises as it is
    warmed up, or late, and one that jumps, has no such trend.
    """
    if len(losses) < 4 * LEAST:
        return None
    blocks = block_means(losses)
    found = Rise(fmean(blocks[:2]), fmean(blocks[-2:]))
    return found if trend(losses) >= _Z and found.after > _HIGHER * found.before > 0 else None


def trend(losses: Sequence[float]) -> float:
    """Mann and Kendall's statistic of 16 losses or more, in standard deviations: below 0 where they fall."""
    blocks = block_means(losses)
    pairs = sum((b > a) - (b < a) for a, b in combinations(blocks, 2))
    return pairs / math.sqrt(LEAST * (LEAST - 1) * (2 * LEAST + 5) / 18)


def block_means(losses: Sequence[float]) -> list[float]:
    """The means of 16 parts of as many losses or more."""
    ends = [len(losses) * number // LEAST for number in range(LEAST + 1)]
    return [fmean(losses[a:b]) for a, b in pairwise(ends)]


def cut_short(before: Sequence[tuple[float, float]], after: Sequence[float]) -> Rise | None:
    """The mean loss before and after the learning rate fell, if that ended the learning; else None.

    Each loss `before` has the sum of the learning rates until the next one. Over three spans of equal sums a loss near
    its floor falls less and less: it must have fallen from the second to the third by 0.6 of its fall before. Then at
    least a fifth of the way is left to a floor that it approaches exponentially. `after` that it no longer falls.
    """
    spans: list[list[float]] = [[] for _ in range(_SPANS)]
    total, passed = sum(rates for _, rates in before), 0.0
    for loss, rates in before:
        spans[min(int(_SPANS * passed / total), _SPANS - 1)].append(loss)
        passed += rates
    half = len(after) // 2
    if min(map(len, spans)) < _IN_SPAN or half < _AFTER:
        return None
    first, second, third = map(fmean, spans)
    noise = stdev(after) * math.sqrt(sum(1 / len(span) for span in spans[1:]))
    goes_on = second - third > max(_Z * noise, _GOES_ON * (first - second), 0.0) and first > second
    early, late = fmean(after[:half]), fmean(after[half:])
    ends = early - late <= _ENDS * (first - third) and late >= _FLOOR * first
    return Rise(first, late) if goes_on and ends else None


def gone_at(losses: Sequence[float], guessed: float) -> int | None:
    """The place of the loss from which on nearly nothing was left of guessing's loss, if it is one of the first."""
    low = [loss < _NOTHING * guessed for loss in losses]
    at = next((number for number in range(min(_AT_ONCE, len(low))) if low[number]), None)
    began = at is not None and losses[0] > guessed / 2
    return at if at is not None and began and sum(low[at:]) >= _MOSTLY * len(low[at:]) else None


def growth(by_step: Sequence[tuple[int, float]]) -> float:
    """By how much a figure grows per step: the median slope (Theil and Sen) of the later half of these points.

    0 for less than five of them.
    """
    later = by_step[len(by_step) // 2 :]
    slopes = [(y - x) / (b - a) for (a, x), (b, y) in combinations(later, 2) if b > a]
    return median(slopes) if slopes and len(later) >= _POINTS else 0.0

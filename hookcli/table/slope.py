"""Gradients that shrink or grow from layer to layer, on their way to the input. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VANISHES, EXPLODES = 1e-4, 1e4
"""The limits for gradients of weights; see HK012 and HK013."""
_LEAST_LAYERS = 4  # with fewer there is no depth for anything to vanish over


@dataclass(frozen=True, slots=True)
class Slope:
    """Figures of the last layers reached that are far from the first layers': between two names, and the utmost one.

    `until` is "the input" where they stay so; `figure` is their median, in units of that near the loss.
    """

    begins: str
    until: str
    utmost: float
    where: str
    figure: float


def slope(figures: Mapping[str, float], limit: float, *, above: bool) -> Slope | None:
    """The slope of figures in the order in which gradients arrive, if the medians of quarters are `limit` times apart.

    The first quarter is near the loss; `above`: growing figures are looked for, else shrinking ones.
    """
    names, quarter = list(figures), len(figures) // 4
    if len(names) < _LEAST_LAYERS:
        return None
    from statistics import median  # imports fractions and decimals, 6 ms

    near_loss = median(figures[name] for name in names[:quarter])
    ratios = [figures[name] / near_loss for name in names]
    figure = median(ratios[-quarter:])
    if not (figure > limit if above else figure < limit):
        return None
    beyond = [ratio > limit if above else ratio < limit for ratio in ratios]
    ends = len(beyond) - 1 - beyond[::-1].index(True)
    begins = ends - [*beyond[ends::-1], False].index(False) + 1
    until = "the input" if ends == len(beyond) - 1 else names[ends]
    utmost = (max if above else min)(ratios)
    return Slope(names[begins], until, utmost, names[ratios.index(utmost)], figure)

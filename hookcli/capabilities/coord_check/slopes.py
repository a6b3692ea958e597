"""Slopes of sizes over widths, both as logarithms, and the sentence on those that grow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hookcli.table.formatting import counted
from hookcli.table.names import in_words

LIMIT = 0.1
"""A slope counts as growth if it is above this by two standard errors: a figure then grows by 7% or more with each
doubling of the width. Where nothing grows in the limit, the slopes of small widths are a few hundredths."""
ERRORS = 2  # standard errors
UNSURE = 0.5
"""A slope that may be as large as this, by two standard errors, leaves open whether anything grows."""
FEWEST = 3  # widths


@dataclass(frozen=True)
class Slope:
    """The exponent of a power law with its standard error: a figure is proportional to width ** value."""

    value: float
    error: float

    @property
    def most(self) -> float:
        """The upper end of its interval: two standard errors above the value."""
        return self.value + ERRORS * self.error

    @property
    def grows(self) -> bool:
        return self.value - ERRORS * self.error > LIMIT

    @property
    def may_grow(self) -> bool:
        return self.value - self.error > LIMIT or self.most >= UNSURE

    @property
    def shrinks(self) -> bool:
        return self.most < -LIMIT

    def __str__(self) -> str:
        return f"{round(self.value, 2) + 0.0:.2f} ± {self.error:.2f}"  # no -0.00


def slope(points: Iterable[tuple[float, float]]) -> Slope | None:
    """The least-squares slope of log2(figure) over log2(width), for pairs of width and figure.

    A figure of 0 has no logarithm and is left out. None for figures of fewer than three widths.
    """
    logs = [(math.log2(width), math.log2(figure)) for width, figure in points if figure > 0]
    if len({x for x, _ in logs}) < FEWEST:
        return None
    n = len(logs)
    mean_x, mean_y = (math.fsum(values) / n for values in zip(*logs, strict=True))
    spread = math.fsum((x - mean_x) ** 2 for x, _ in logs)
    value = math.fsum((x - mean_x) * (y - mean_y) for x, y in logs) / spread
    rest = math.fsum((y - mean_y - value * (x - mean_x)) ** 2 for x, y in logs)
    return Slope(value, math.sqrt(rest / (n - 2) / spread))


KINDS = {
    "change": "the change of {}'s output",
    "initial": "the output of {} at initialization",
    "size": "the output of {}",
}
"""The figures of a module that may grow, in words; the change tells most of how a wider model will train."""


@dataclass(frozen=True)
class Growth:
    """The slope of one of the KINDS of figures of a module."""

    fqn: str
    kind: str
    slope: Slope

    def __str__(self) -> str:
        return KINDS[self.kind].format(named(self.fqn))


def named(fqn: str) -> str:
    """The name of a module in a sentence."""
    return in_words(fqn) if fqn else "the model"


def in_a_word(growths: Iterable[Growth]) -> str:
    """A word or two on what the figures of a module do with the width; "" for nothing."""
    grows = [one.kind for one in growths if one.slope.grows]
    if grows:
        return "change grows" if "change" in grows else "grows"
    return "change shrinks" if any(one.kind == "change" and one.slope.shrinks for one in growths) else ""


def verdict(growths: Sequence[Growth], of: str) -> str:
    """The figure that grows most between the widths `of` (64 to 512); else one that may, or shrinks, or the largest."""
    if not any(one.kind == "change" for one in growths):
        return "No output has changed: nothing that these modules depend on was trained"
    for kind in KINDS:
        if grow := [one for one in growths if one.kind == kind and one.slope.grows]:
            return f"{most(grow, 'grows with width', growths, of)}: hyperparameters will not transfer"
    if unsure := [one for one in growths if one.slope.may_grow]:
        largest = max(unsure, key=lambda one: one.slope.most)
        may = f"{largest} may: slope {largest.slope}"
        return f"Nothing clearly grows with width ({of}), but {may}; more --seeds, or larger widths, will tell"
    if shrink := [one for one in growths if one.kind == "change" and one.slope.shrinks]:
        shrinking = most(shrink, "shrinks", growths, of)
        return f"Nothing grows with width, though {shrinking[0].lower()}{shrinking[1:]}"
    largest = max(growths, key=lambda one: one.slope.value)
    return f"Nothing grows with width ({of}): the largest slope is {largest.slope}, of {largest}"


def most(some: Sequence[Growth], does: str, growths: Sequence[Growth], of: str) -> str:
    """The sentence on the figure, of some of one kind, that is surely furthest from 0; of equal ones the innermost."""
    one = max(some, key=lambda one: (abs(one.slope.value) - ERRORS * one.slope.error, one.fqn.count("."), one.fqn))
    every = sum(other.kind == one.kind for other in growths)
    others = f"; {len(some)} of {counted(every, 'module')}" if len(some) > 1 else ""
    text = f"{one} {does}: slope {one.slope} ({of}{others})"
    return text[0].upper() + text[1:]

"""The labels of recorded steps: whether they are one class, and come class by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import comb, lgamma, log

from hookcli.capabilities.learn.losses.loss_facts import LabelRange

_BY_CHANCE = 1e-4  # the share of all orders


@dataclass
class Labels:
    """The labels of recorded steps, of those whose labels are known."""

    number: int = 0
    """The number of these steps."""
    classes: set[int] = field(default_factory=set)
    """The classes that steps had alone; -1 for steps with several."""
    alone: list[int] = field(default_factory=list)
    """The class of each step whose labels all count, and are one."""
    in_blocks: bool = False
    alternates: bool = False
    """True if the classes of two steps in a row differed: then each batch has another one by design."""

    _last: int = -1
    """The step of the last class in `alone`."""

    def fields(self, of_step: LabelRange | None, step: int) -> dict[str, int]:
        """Note the labels of this recorded step; None if they are not known. Returns the fields of a line."""
        one_class = of_step.one_class() if of_step else None
        if of_step is not None and one_class is not None:
            self.number += 1
            if one_class >= 0 and of_step.counted == of_step.number:
                follows = step == self._last + 1 and bool(self.alone)
                self.alternates |= follows and self.alone[-1] != one_class
                self.alone.append(one_class)
                self._last = step
            self.in_blocks |= are_blocks(self.alone) or (not self.alternates and are_in_turn(self.alone))
            self.classes.add(one_class)
        one = len(self.classes) == 1 and -1 not in self.classes
        one_each = len(self.alone) if self.in_blocks else 0
        counts = {"counted": of_step.counted, "number": of_step.number} if of_step else {}
        return {"one_label": self.number if one else 0, "labelled": self.number, "one_each": one_each, **counts}


def are_blocks(classes: Sequence[int]) -> bool:
    """True if equal classes, of two or more, follow each other as hardly any order by chance has them."""
    number, counts = len(classes), Counter(classes)
    if len(counts) < 2 or sum(a != b for a, b in pairwise(classes)) >= len(counts):
        return False
    orders = lgamma(len(counts) + 1) + sum(lgamma(count + 1) for count in counts.values()) - lgamma(number + 1)
    return orders < log(_BY_CHANCE)


def are_in_turn(classes: Sequence[int]) -> bool:
    """True if next to all classes come after a lower one, or next to none, as hardly any order by chance has them.

    So if one batch in ten is recorded, and the batches of a class are ten.
    """
    pairs = [(a, b) for a, b in pairwise(classes) if a != b]
    fewer = min(sum(a < b for a, b in pairs), sum(a > b for a, b in pairs))
    orders: int = 2 ** len(pairs)
    return 2 * sum(comb(len(pairs), number) for number in range(fewer + 1)) < _BY_CHANCE * orders

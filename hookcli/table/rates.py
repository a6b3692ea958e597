"""The learning rates of an optimizer over a training. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FALLEN = 1e-4
"""The share of the highest learning rate below which a rate counts as zero."""


@dataclass(slots=True)
class RateCourse:
    """The learning rates of an optimizer over the recorded steps that it made.

    `fallen` is the number of the last steps in which all were next to nothing, and no parameter moved though gradients
    arrived, `fell_at` the first of these; 0 if they always were. `highest` is the highest rate of all steps, `rate`
    the last one's, and `names` its parameters.
    """

    stepped: int = 0
    resting: int = 0
    fallen: int = 0
    fell_at: int = 0
    highest: float = 0.0
    rate: float = 0.0
    names: Sequence[str] = ()

    def add(self, step: int, rates: Mapping[str, float | None], *, trains: bool) -> None:
        """Take a step in which each parameter had one of these rates. `trains`: some moved, or none got a gradient."""
        self.stepped += 1
        known = [rate for rate in rates.values() if rate is not None]
        self.rate = max(known, default=0.0)
        self.highest = max(self.highest, self.rate)
        rests = len(known) == len(rates) and self.rate <= FALLEN * self.highest
        self.resting += rests
        fallen = rests and self.resting < self.stepped and not trains
        if fallen and not self.fallen:
            self.fell_at = step
        self.fallen = self.fallen + 1 if fallen else 0
        self.names = list(rates)

"""Which of two runs is better: their losses in the last step that both have, the best ones, and where they part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hookcli.diff.tolerance import times_allowed
from hookcli.record.file.reading import Record
from hookcli.table.formatting import loss as text_of
from hookcli.table.losses import LossCourse

Losses = Mapping[int, float]
"""The loss of each training step."""
_TOLD = (1.999, 100)  # factors: below, a share says more; above, the two losses speak for themselves


def losses(record: Record, model: str) -> Losses:
    """The losses of a model in its training steps: in the recorded ones, where an older record has no others."""
    if every := record.losses_of(model):
        return every
    entries = [entry for entry in record.entries if entry.key == (model, "train") and record.counts(entry)]
    steps = record.steps(entries, keep=lambda row: False)
    return {step.step: step.loss for step in steps if step.loss is not None}


@dataclass(frozen=True)
class TwoLosses:
    """The losses of two runs, and their tolerances."""

    a: Losses
    b: Losses
    rtol: float
    atol: float

    def parting(self) -> int | None:
        """The first common step whose losses differ beyond tolerance; None if none do."""
        return next(filter(self._differ, sorted(self.a.keys() & self.b.keys())), None)

    def _differ(self, step: int) -> bool:
        a, b = self.a[step], self.b[step]
        return times_allowed(a, b, self.rtol * abs(a) + self.atol) > 1

    def verdict(self) -> str:
        """The losses of both in a sentence; "" if they have none in common.

        "B is better: loss 0.0285 at step 57, where A has 2.54; they part at step 3". One that is not finite is the
        worst.
        """
        of = {"A": self.a, "B": self.b}
        if not (common := self.a.keys() & self.b.keys()):
            return ""
        last, parted = max(common), self.parting()
        when = f"step {last:,}{', the last in both' if max(self.a) != max(self.b) else ''}"
        not_finite = [text for side, own in of.items() if (text := _not_finite(side, own))]
        if not self._differ(last):
            after = [] if parted is None else [f"they part at step {parted:,} and meet again"]
            return "; ".join([f"both have loss {text_of(self.b[last])} at {when}", *not_finite, *after])
        better, worse = sorted(of, key=lambda side: _rank(of[side][last]))
        low, high = of[better][last], of[worse][last]
        lead = f"{better} is better: loss {text_of(low)} at {when}, where {worse} has {text_of(high)}{_less(low, high)}"
        best = [_best(of)] if any(_best_step(own) not in (None, last) for own in of.values()) else []
        return "; ".join([lead, *not_finite, *best, f"they part at step {parted:,}"])


def _rank(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _less(low: float, high: float) -> str:
    """By how much one loss is below the other, in parentheses: a share, or a factor."""
    if not (math.isfinite(high) and 0 < low < high):
        return ""
    if (factor := high / low) < _TOLD[0]:
        return f" ({100 * (1 - low / high):.2g} % lower)"
    return f" ({factor:.2g} times lower)" if factor < _TOLD[1] else ""


def _not_finite(side: str, own: Losses) -> str:
    return f"{side}'s loss was {fault}" if (fault := LossCourse.of(own).fault()) else ""


def _best_step(own: Losses) -> int | None:
    return min((step for step, loss in own.items() if math.isfinite(loss)), key=lambda step: own[step], default=None)


def _best(of: Mapping[str, Losses]) -> str:
    steps = {side: _best_step(own) for side, own in of.items()}
    named = [f"{side} {text_of(of[side][step])} (step {step:,})" for side, step in steps.items() if step is not None]
    return f"best: {', '.join(named)}"

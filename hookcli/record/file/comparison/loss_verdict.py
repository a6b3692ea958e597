"""Which of two runs is better: by their losses in the last steps that both have; and where they part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import fmean, stdev

from hookcli.diff.tolerance import times_allowed
from hookcli.record.file.reading import Record
from hookcli.table.formatting import listed
from hookcli.table.formatting import loss as text_of
from hookcli.table.losses import LossCourse

Losses = Mapping[int, float]
"""The loss of each training step."""
_BLOCKS = 8
_STUDENT = 2.365
"""The 97.5 % quantile of Student's t with 7 degrees of freedom."""
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
        worst. Of 32 steps and more, means over the last quarter are compared: a single step may be luck.
        """
        of = {"A": self.a, "B": self.b}
        if not (common := self.a.keys() & self.b.keys()):
            return ""
        last, parted, window = max(common), self.parting(), _window(common)
        when = f"step {last:,}{', the last in both' if max(self.a) != max(self.b) else ''}"
        not_finite = [text for side, own in of.items() if (text := _not_finite(side, own))]
        if not any(map(self._differ, window)):
            after = [] if parted is None else [f"they part at step {parted:,} and meet again"]
            return "; ".join([f"both have loss {text_of(self.b[last])} at {when}", *not_finite, *after])
        parting = f"they part at step {parted:,}"
        means = {side: sum(own[step] for step in window) / len(window) for side, own in of.items()}
        better, worse = sorted(of, key=lambda side: _rank(means[side]))
        low, high = means[better], means[worse]
        best = [_best(of)] if any(_best_step(own) not in (None, last) for own in of.values()) else []
        if not window[1:]:
            lead = f"loss {text_of(low)} at {when}, where {worse} has {text_of(high)}{_less(low, high)}"
            return "; ".join([f"{better} is better: {lead}", *not_finite, *best, parting])
        over = f"over steps {window[0]:,} to {last:,}"
        single = f"at step {last:,} A {text_of(self.a[last])}, B {text_of(self.b[last])}"
        if _is_clear([self.b[step] - self.a[step] for step in window]):
            lead = f"{better} is better: mean loss {text_of(low)} {over}, where {worse} has {text_of(high)}"
            return "; ".join([lead + _less(low, high), *not_finite, single, *best, parting])
        lead = f"neither is clearly better: mean loss A {text_of(means['A'])}, B {text_of(means['B'])} {over}"
        return "; ".join([f"{lead}, apart by less than their spread", *not_finite, single, *best, parting])


def _window(common: AbstractSet[int]) -> list[int]:
    """The last quarter of the common steps; the last one alone, if these are few."""
    steps = sorted(common)
    return steps[-(len(steps) // 4) :] if len(steps) // 4 >= _BLOCKS else steps[-1:]


def _is_clear(differences: Sequence[float]) -> bool:
    """True if the mean of the differences is not 0, with 95 % confidence: Student's t on the means of blocks, which
    depend on each other less than steps do.
    """
    if not all(map(math.isfinite, differences)):
        return True
    size = len(differences) // _BLOCKS
    blocks = [fmean(differences[n * size : (n + 1) * size]) for n in range(_BLOCKS)]
    return abs(fmean(blocks)) > _STUDENT * stdev(blocks) / math.sqrt(_BLOCKS)


def lowest(of: Mapping[str, Losses]) -> str:
    """The run with the lowest loss in the last step that all runs with a loss have, and those that were not finite.

    "C has the lowest loss: 0.0285 at step 57; next: B 0.0324 (12 % lower); A's loss was NaN from step 37 on". A lower
    one that a run had in another step is named. "" if no run has a loss.
    """
    told = {run: own for run, own in of.items() if own}
    if not told:
        return ""
    lack = [f"no loss is recorded in {listed([run for run in of if run not in told])}"] if len(told) < len(of) else []
    rest = [*(text for run, own in told.items() if (text := _not_finite(run, own))), *lack]
    best = {run: own[step] for run, own in told.items() if (step := _best_step(own)) is not None}
    least = min(best, key=best.__getitem__, default="")
    common = set.intersection(*({*own} for own in told.values()))
    if not common:
        return "; ".join(["no training step is in all runs", *_at_any_step(told, least), *rest])
    last = max(common)
    ends = {run: own[last] for run, own in told.items()}
    when = f"step {last:,}{', the last in all' if len({max(own) for own in told.values()}) > 1 else ''}"
    low = min(ends.values(), key=_rank)
    if not math.isfinite(low):
        return "; ".join([f"no run has a finite loss at {when}", *rest])
    above = best[least] < low and text_of(ends[least]) != text_of(low)
    return "; ".join([*_lead(ends, low, when), *(_at_any_step(told, least) if above else ()), *rest])


def _lead(ends: Mapping[str, float], low: float, when: str) -> list[str]:
    """The runs with the lowest of these losses, and the next run."""
    lead = [run for run, loss in ends.items() if text_of(loss) == text_of(low)]
    others = sorted((run for run in ends if run not in lead), key=lambda run: _rank(ends[run]))
    if not others:
        return [f"all runs have loss {text_of(low)} at {when}"]
    verb = "have" if lead[1:] else "has"
    following = f"next: {others[0]} {text_of(ends[others[0]])}{_less(low, ends[others[0]])}"
    return [f"{listed(lead)} {verb} the lowest loss: {text_of(low)} at {when}", following]


def _at_any_step(of: Mapping[str, Losses], run: str) -> list[str]:
    return [_best({run: of[run]}).replace("best", "lowest at any step", 1)] if run else []


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

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

    def headlines(self) -> dict[str, str]:
        """The totals on the losses of both, which begin a comparison; empty if they have no step in common.

        "verdict": B is better: loss 0.0285 at step 57, 89 times lower than A's 2.54; a loss that is not finite is the
        worst. Of 32 steps and more, means over the last quarter are compared: a single step may be luck. "apart": which
        steps these are, the best losses, and the first step that differs.
        """
        common = self.a.keys() & self.b.keys()
        if not common:
            return {}
        window = _window(common)
        last, agree = window[-1], not any(map(self._differ, window))
        means = {side: sum(own[step] for step in window) / len(window) for side, own in self._sides.items()}
        if agree:
            lead = f"both have loss {text_of(self.b[last])} at step {last:,}"
        elif window[1:] and not _is_clear([self.b[step] - self.a[step] for step in window]):
            each = ", ".join(f"{side} {text_of(mean)}" for side, mean in means.items())
            lead = f"neither is clearly better: mean loss {each}, within their spread"
        else:
            better, worse = sorted(means, key=lambda side: _rank(means[side]))
            mean, when = ("mean ", "") if window[1:] else ("", f" at step {last:,}")
            versus = _versus(means[better], means[worse], worse)
            lead = f"{better} is better: {mean}loss {text_of(means[better])}{when}, {versus}"
        not_finite = [_not_finite(side, own) for side, own in self._sides.items()]
        texts = {"verdict": [lead, *not_finite], "apart": self._apart(window, agree)}
        return {key: "; ".join(filter(None, parts)) for key, parts in texts.items() if any(parts)}

    @property
    def _sides(self) -> dict[str, Losses]:
        return {"A": self.a, "B": self.b}

    def _apart(self, window: Sequence[int], agree: bool) -> list[str]:
        """The steps that are compared, the best losses if these came before, and the step at which losses part."""
        last, texts = window[-1], []
        if not agree and len(window) > 1:
            both = f"A {text_of(self.a[last])}, B {text_of(self.b[last])}"
            texts.append(f"means over steps {window[0]:,} to {last:,}; at step {last:,} {both}")
        elif max(self.a) != max(self.b):
            texts.append(f"step {last:,} is the last in both")
        if not agree and any(_best_step(own) not in (None, last) for own in (self.a, self.b)):
            texts.append(_best(self._sides))
        if (parting := self.parting()) is not None:
            texts.append(f"losses part at step {parting:,}{' and meet again' if agree else ''}")
        return texts


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
    """The run with the lowest loss at the end of what all runs with a loss have, and those that were not finite.

    "C has the lowest mean loss: 0.0285 over steps 90 to 119, 12% lower than B's 0.0324; A's loss was NaN from step 37
    on". As between two runs, means are compared if there are enough steps, and those within their spread stand
    together. A lower loss that another run had in a step is named. "" if no run has a loss.
    """
    with_losses = {run: own for run, own in of.items() if own}
    if not with_losses:
        return ""
    texts = _lowest(with_losses)
    texts += [_not_finite(run, own) for run, own in with_losses.items()]
    if lacking := [run for run in of if run not in with_losses]:
        texts.append(f"no loss is recorded in {listed(lacking)}")
    return "; ".join(filter(None, texts))


def _lowest(of: Mapping[str, Losses]) -> list[str]:
    """The run with the lowest loss at the end of what these runs with losses share, and a lower one in any step."""
    best = {run: own[step] for run, own in of.items() if (step := _best_step(own)) is not None}
    least = min(best, key=best.__getitem__, default="")
    lowest_step = _best({least: of[least]}).replace("best", "lowest at any step", 1) if least else ""
    common = set.intersection(*map(set, of.values()))
    if not common:
        return ["no training step is in all runs", lowest_step]
    window, ends = _window(common), final_losses(of)
    when = f"over steps {window[0]:,} to {window[-1]:,}" if window[1:] else f"at step {window[-1]:,}"
    if len({*map(max, of.values())}) > 1:
        when += ", the last in all"
    first = lowest_of(ends)
    if not math.isfinite(ends[first]):
        return [f"no run has a finite loss {when}"]
    lead = []
    for run, own in of.items():
        alike = text_of(ends[run]) == text_of(ends[first])
        if alike or (window[1:] and not _is_clear([own[n] - of[first][n] for n in window])):
            lead.append(run)
    above = least not in lead and best[least] < ends[first]
    return [_lead(ends, first, lead, ("mean " * bool(window[1:]), when)), lowest_step if above else ""]


def final_losses(of: Mapping[str, Losses]) -> dict[str, float]:
    """The loss of each run that has one at the end of the steps that all have: the mean over a window, or the last."""
    with_losses = {run: own for run, own in of.items() if own}
    common = set.intersection(*({*own} for own in with_losses.values())) if with_losses else set()
    return {run: fmean(own[n] for n in (_window(common) if common else [max(own)])) for run, own in with_losses.items()}


def _lead(ends: Mapping[str, float], first: str, lead: Sequence[str], words: tuple[str, str]) -> str:
    """The runs with the lowest of these losses, or within the spread of the `first`, beside the next run."""
    mean, when = words
    others = sorted((run for run in ends if run not in lead), key=lambda run: _rank(ends[run]))
    low = text_of(ends[first])
    versus = f", {_versus(ends[first], ends[others[0]], others[0])}" if others else ""
    if any(text_of(ends[run]) != low for run in lead):
        each = ", ".join(f"{run} {text_of(ends[run])}" for run in lead)
        none = f"{listed(lead)} are not clearly apart" if others else "no run is clearly better"
        return f"{none}: {mean}loss {each} {when}, within their spread{versus}"
    if not others:
        return f"all runs have {mean}loss {low} {when}"
    return f"{listed(lead)} {'have' if lead[1:] else 'has'} the lowest {mean}loss: {low} {when}{versus}"


def lowest_of(ends: Mapping[str, float]) -> str:
    """The run with the lowest of these losses, finite ones first; "" if there are none."""
    return min(ends, key=lambda run: _rank(ends[run]), default="")


def _rank(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _versus(low: float, high: float, run: str) -> str:
    """How a loss compares with the higher one of another run: by a share, or a factor."""
    factor = high / low if math.isfinite(high) and 0 < low < high else math.inf
    if factor >= _TOLD[1]:
        return f"where {run} has {text_of(high)}"
    less = f"{100 * (1 - low / high):.2g}%" if factor < _TOLD[0] else f"{factor:.2g} times"
    return f"{less} lower than {run}'s {text_of(high)}"


def _not_finite(side: str, own: Losses) -> str:
    return f"{side}'s loss was {fault}" if (fault := LossCourse.of(own).fault()) else ""


def _best_step(own: Losses) -> int | None:
    return min((step for step, loss in own.items() if math.isfinite(loss)), key=lambda step: own[step], default=None)


def _best(of: Mapping[str, Losses]) -> str:
    steps = {side: _best_step(own) for side, own in of.items()}
    named = [f"{side} {text_of(of[side][step])} (step {step:,})" for side, step in steps.items() if step is not None]
    return f"best: {', '.join(named)}"

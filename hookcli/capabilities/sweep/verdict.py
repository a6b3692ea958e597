"""The first line of a sweep: the change that matters most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hookcli.capabilities.sweep.trials import Sweep, Trial
from hookcli.engine.output_changes import LITTLE, Outputs, short
from hookcli.table.formatting import counted, number
from hookcli.table.names import is_within

_DECIDES = 2.0  # times the effect of the next: a change alone decides, if it is at least half of the figure
_ROUNDING = 1e-6

Figures = dict[str, Any]
"""`logit` and `loss`, if the run has them; if the shapes are the same `output_change`, with the path of the `output`
that changes so much, and of several `outputs` the names of those that change."""
Ranked = tuple[Trial, Figures]


def same(figures: Figures, others: Figures) -> bool:
    """True for figures that are equal but for rounding."""
    keys = ("output_change", "loss", "logit")
    pairs = [(figures.get(key, math.nan), others.get(key, math.nan)) for key in keys if key in figures or key in others]
    return all(math.isclose(a, b, rel_tol=_ROUNDING) for a, b in pairs)


@dataclass(frozen=True)
class Verdict:
    """The sentence on changes with their figures, by the figure `key`, in words `what`; `base` has it as it is."""

    sweep: Sweep
    outputs: Outputs
    base: Figures
    key: str
    what: str
    noise: float

    def effect(self, figures: Figures) -> float:
        """How far a change moves the figure that ranks; infinite for one that is not finite, or not there."""
        effect = abs(figures.get(self.key, math.inf) - self.base[self.key])
        return math.inf if math.isnan(effect) else effect

    def of(self, ranked: Sequence[Ranked]) -> str:
        """The change that matters most: layers.2.mlp decides logit 42: 3.100 → -0.4000 when zeroed.

        Bottlenecks count where nothing else has an effect. Of several with the same effect, as all modules of one
        branch have, one that contains others is named.
        """
        if broken := self._broken():
            already = f"{broken} is not finite even in the unchanged model"
            return f"The ranking is meaningless: {already} (hookcli check finds where that begins)"
        effective = [row for row in ranked if self.effect(row[1]) > self.noise]
        rivals = self._rivals(effective)
        one, done = self.sweep.of[:-1], f"when {self.sweep.done}"
        if not rivals:
            more = f" by more than a second run of the unchanged model does: {number(self.noise)}" if self.noise else ""
            return f"None of {counted(len(ranked), one)} changes {self.what} {done}{more}"
        tied = [row for row in rivals if self.effect(row[1]) >= (1 - _ROUNDING) * self.effect(rivals[0][1])]
        first, figures = _outermost(tied)
        name = first.name
        if first.bottleneck and len(effective) < len(ranked):
            name += " (bottleneck)"
        if self._is_little(figures) and not self.sweep.quantize:
            large = sum(not self._is_little(others) for _, others in effective)  # bottlenecks: the rest is no larger
            much = f"much, except {counted(large, 'bottleneck')}" if large else "much"
            return f"No {one} changes {self.what} {much}: {self._change(figures)} at most {done} ({name})"
        after = self._next(first, rivals[len(tied) :])
        return self.first_of(name, figures, after, alone=len(ranked) > 1)

    def first_of(self, name: str, figures: Figures, after: Ranked | None, *, alone: bool) -> str:
        """The sentence on the change that matters most, which is of the one called `name`, and the next; `alone`: it
        may decide the figure by itself.
        """
        following = f" (next: {after[0].name}, {self._figure(after[1])})" if after else ""
        if self.sweep.quantize:
            what = f"Rounding {name} to {self.sweep.quantize} changes {self.what} most"
            return f"{what}: {self._change(figures)}{following}"
        if self.key == "output_change":
            does = f"changes {self.outputs.in_words(figures.get('output'))} most"
        else:  # it decides a figure alone if it is at least half of it, and twice the next
            most = self.effect(figures)
            decides = most >= _DECIDES * self.effect(after[1]) if after else alone
            decides = decides and most >= self._size() / 2
            does = f"decides {self.what}" if decides else f"changes {self.what} most"
        return f"{name} {does}: {self._change(figures)} when {self.sweep.done}{following}"

    @staticmethod
    def _rivals(effective: Sequence[Ranked]) -> Sequence[Ranked]:
        """The changes that the first is chosen from: bottlenecks only if there is nothing else."""
        return [row for row in effective if not row[0].bottleneck] or effective

    def _is_little(self, figures: Figures) -> bool:
        return self.effect(figures) < LITTLE * self._size()

    @staticmethod
    def _next(first: Trial, others: Sequence[Ranked]) -> Ranked | None:
        """The next one that neither is a part of the first nor contains it."""
        for trial, figures in others:
            kin = is_within(trial.fqn, first.fqn) or is_within(first.fqn, trial.fqn)
            if trial.part or not kin:
                return trial, figures
        return None

    def _broken(self) -> str:
        """The figure that is not finite as it is, or the output with NaN; else ""."""
        if not math.isfinite(self.base[self.key]):
            return self.what
        path = self.outputs.with_nan() if self.key == "output_change" else None
        return "" if path is None else self.outputs.in_words(path)

    def _size(self) -> float:
        """The figure as it is, of which a change is a small or a large part."""
        return 1.0 if self.key == "output_change" else abs(self.base[self.key])

    def _change(self, figures: Figures) -> str:
        """The figure before and after: 3.100 → -0.4000, or relative l2 0.7000."""
        if self.key not in figures:
            return "another shape"
        if math.isinf(figures[self.key]) and self.key == "output_change":
            return "NaN or Inf comes out"
        before = "relative l2" if self.key == "output_change" else f"{number(self.base[self.key])} →"
        return f"{before} {number(figures[self.key])}"

    def _figure(self, figures: Figures) -> str:
        """The figure after a change, with the output that changes most if there are several."""
        several = self.key == "output_change" and len(self.outputs.first) > 1 and "output" in figures
        return f"{number(figures.get(self.key))}{' of ' + short(figures['output']) if several else ''}"


def _outermost(tied: Sequence[Ranked]) -> Ranked:
    """The first of these that contains another one, else the first."""
    for row in tied:
        if any(is_within(other.fqn, row[0].fqn) for other, _ in tied):
            return row
    return tied[0]

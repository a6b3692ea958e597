"""Compares the fingerprints of two runs: what they do not share first, and whether one goes on where the other was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hookcli.capabilities.fingerprints.lines import DIGITS, Fingerprint
from hookcli.record.file.reading import Record
from hookcli.table.formatting import counted, listed

_WORDS = {
    "weights": "the weights",  # another word
    "kept": "the optimizer's state",
    "settings": "the optimizer's settings",
    "random": "PyTorch's random numbers",
    "python": "Python's random numbers",
    "numpy": "numpy's random numbers",
    "received": "the batch",
}
_GENERATORS = ("random", "python", "numpy")
Place = tuple[int, int]
"""A step and a rank."""


def parting(a: Record, b: Record, model: str, other: str) -> str:
    """The runs part at step 7, in the batch; the weights, the optimizer's state ... are still the same, bit for bit.

    `model` is the model's name in A, `other` in B. "" if the records have no fingerprints of it.
    """
    both = TwoRuns(prints_of(a, model), prints_of(b, other))
    return both.goes_on("AB") or TwoRuns(both.b, both.a).goes_on("BA") or both.parting()


def prints_of(record: Record, model: str) -> dict[Place, Fingerprint]:
    """The fingerprints of a model in a record."""
    return {(one.step, one.rank): one for one in record.of(Fingerprint) if one.model == model}


@dataclass(frozen=True)
class TwoRuns:
    """The fingerprints of one model in two runs."""

    a: Mapping[Place, Fingerprint]
    b: Mapping[Place, Fingerprint]

    @cached_property
    def compared(self) -> list[str]:
        """The fields to compare, without generators that neither run draws from: their states change nothing."""
        runs = (self.a.values(), self.b.values())
        states = {what: [{getattr(one, what) for one in run if not one.after} for run in runs] for what in _GENERATORS}
        drawn = [what for what, of_runs in states.items() if any(len(known) > 1 for known in of_runs)]
        return [what for what in _WORDS if what in drawn or what not in _GENERATORS]

    def split(self, one: Fingerprint, other: Fingerprint) -> tuple[list[str], list[str]]:
        """The fields that differ and those that are the same, as far as both runs have them."""
        known = [what for what in self.compared if getattr(one, what) and getattr(other, what)]
        apart = [what for what in known if getattr(one, what) != getattr(other, what)]
        return apart, [what for what in known if what not in apart]

    def goes_on(self, labels: str) -> str:
        """B goes on with the weights that A had at step 20; not restored: ... "" if it does not."""
        if not (self.a and self.b):
            return ""
        begin = min(self.b)
        one, there = self.b[begin], self.a.get(begin)
        if there and there.weights == one.weights:
            return ""
        later = (at for at in sorted(self.a, reverse=True) if at > begin and self.a[at].weights == one.weights)
        if (found := next(later, None)) is None:
            return ""
        before, first, second = self.a[found], labels[0], labels[1]
        when = f"after step {found[0] - 1:,}" if before.after else f"at step {found[0]:,}"
        apart, same = self.split(before, one)
        lost = f"not restored: {_listed(apart)}" if apart else f"restored, too: {_listed(same[1:])}"
        alike = (step for (step, _), x in sorted(self.a.items()) if x.received and x.received == one.received)
        batch = next(alike, None)
        data = "" if batch is None else f"; its first batch is that of {first}'s step {batch:,}"
        return f"{second} begins with the weights that {first} had {when}; {lost}{data}"

    def parting(self) -> str:
        """Where the runs first differ, and in which fields; or that they never do."""
        common = sorted(at for at in self.a.keys() & self.b.keys() if not (self.a[at].after or self.b[at].after))
        if not common:
            return ""
        at = next((at for at in common if self.split(self.a[at], self.b[at])[0]), None)
        if at is None:
            steps = len({step for step, _ in common})
            return f"bit for bit, all {steps:,} steps that both have recorded began alike"
        where = f" on rank {at[1]}" if any(rank for _, rank in common) else ""
        before = max((step for step, _ in common if step < at[0]), default=None)
        return f"the runs part at step {at[0]:,}{where}, {self.apart(at, before)}"

    def apart(self, at: Place, before: int | None) -> str:
        """Which fields differ as a step begins, and which do not. `before`: the last step before it in both runs."""
        apart, same = self.split(self.a[at], self.b[at])
        text = f"in {_listed(apart)}{self.first_weight(at)}"
        text += f"; {_listed(same)} are still the same, bit for bit" if same else ""
        if before is None or apart[0] != next(iter(_WORDS)):
            return text
        cause = "its targets, its code, or kernels that add in no fixed order"
        return f"{text}; step {before:,} began alike: look at {cause}"

    def first_weight(self, at: Place) -> str:
        """The first tensor of the weights that differs, in brackets; "" if none does, or its name is not known."""
        names = next((one.names for one in self.a.values() if one.names and one.rank == at[1]), ())
        ours, theirs = (digits(run[at].each) for run in (self.a, self.b))
        apart = [number for number, pair in enumerate(zip(ours, theirs, strict=False)) if len({*pair}) > 1]
        if not apart or not len(ours) == len(theirs) == len(names):
            return ""
        more = f"and {counted(len(apart) - 1, 'more tensor')}" if apart[1:] else "alone"
        return f" ({names[apart[0]]} {more})"


def digits(each: str) -> list[str]:
    """The digits of each tensor."""
    return [each[n : n + DIGITS] for n in range(0, len(each), DIGITS)]


def _listed(what: Sequence[str]) -> str:
    return listed([_WORDS[one] for one in what])

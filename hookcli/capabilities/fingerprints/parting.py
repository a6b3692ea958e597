"""Compares the fingerprints of two runs: what they do not share first, and whether one goes on where the other was."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from hookcli.capabilities.fingerprints.lines import DIGITS, VALUE_DIGITS, Fingerprint, Values
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
_WITHIN = {
    "returned": "the model's output",
    "targets": "the targets",
    "loss": "the loss (its targets, or how it is computed)",
}
_FIRST = next(iter(_WORDS))
_GENERATORS = ("random", "python", "numpy")
Place = tuple[int, int]
"""A step and a rank."""


def parting(a: Record, b: Record, model: str, other: str) -> tuple[str, str]:
    """The runs part at step 7, in the batch; the weights, the optimizer's state ... are still the same, bit for bit.

    `model` is the model's name in A, `other` in B. "" if the records have no fingerprints of it. The second text is
    the command that records both again, with all that is computed in the step that tells more; "" for none.
    """
    values = values_of(a, model), values_of(b, other)
    both = TwoRuns(prints_of(a, model), prints_of(b, other), *values)
    if text := both.goes_on("AB") or TwoRuns(both.b, both.a).goes_on("BA"):
        return text, ""
    options = both.worth_recording()
    return both.parting(), recorded_again(a, b, options) if options else ""


def recorded_again(a: Record, b: Record, options: Sequence[str]) -> str:
    """The command that records both scripts with these options, and compares them; "" if it is not known."""
    commands, paths = [], []
    for record in (a, b):
        header = record.header
        if header is None or header.ranks > 1 or not header.name.endswith(".py") or not header.argv:
            return ""
        name = f"{record.path.name.partition('.')[0]}-{options[-1].replace(':', '-')}"
        paths.append(str(record.path.with_name(f"{name}.run.jsonl")))
        commands.append(["hookcli", "run", *options, "--output", paths[-1], *header.argv])
    return " && ".join(map(shlex.join, [*commands, ["hookcli", "diff", *paths]])) if len({*paths}) == 2 else ""


def prints_of(record: Record, model: str) -> dict[Place, Fingerprint]:
    """The fingerprints of a model in a record."""
    return {(one.step, one.rank): one for one in record.of(Fingerprint) if one.model == model}


def values_of(record: Record, model: str) -> dict[Place, Values]:
    """The digests of the values in a model's steps, each with the names."""
    by_place: dict[Place, Values] = {}
    last: dict[int, Values] = {}
    for line in record.of(Values):
        if line.model != model:
            continue
        if not line.output_names and (before := last.get(line.rank)):
            line = replace(line, output_names=before.output_names, gradient_names=before.gradient_names)
        by_place[line.step, line.rank] = last[line.rank] = line
    return by_place


@dataclass(frozen=True)
class TwoRuns:
    """The fingerprints of one model in two runs, and the digests of the values in their steps."""

    a: Mapping[Place, Fingerprint]
    b: Mapping[Place, Fingerprint]
    in_a: Mapping[Place, Values] = field(default_factory=dict)
    in_b: Mapping[Place, Values] = field(default_factory=dict)

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
        differing = [what for what in known if getattr(one, what) != getattr(other, what)]
        return differing, [what for what in known if what not in differing]

    def goes_on(self, labels: str) -> str:
        """B goes on with the weights that A had at step 20; not restored: ... "" if it does not."""
        if not (self.a and self.b):
            return ""
        begin = min(self.b)
        one, there = self.b[begin], self.a.get(begin)
        if there and there.weights == one.weights:
            return ""
        later = (at for at in sorted(self.a, reverse=True) if at > begin and self.a[at].weights == one.weights)
        if (parting := next(later, None)) is None:
            return ""
        before, first, second = self.a[parting], labels[0], labels[1]
        when = f"after step {parting[0] - 1:,}" if before.after else f"at step {parting[0]:,}"
        differing, same = self.split(before, one)
        lost = f"not restored: {_listed(differing)}" if differing else f"restored, too: {_listed(same[1:])}"
        alike = (step for (step, _), x in sorted(self.a.items()) if x.received and x.received == one.received)
        batch = next(alike, None)
        data = "" if batch is None else f"; its first batch is the batch of {first}'s step {batch:,}"
        return f"{second} begins with the weights that {first} had {when}; {lost}{data}"

    @cached_property
    def common(self) -> list[Place]:
        """The steps, as they begin, that both runs have recorded."""
        return sorted(at for at in self.a.keys() & self.b.keys() if not (self.a[at].after or self.b[at].after))

    def begins_apart(self, at: Place) -> bool:
        return bool(self.split(self.a[at], self.b[at])[0])

    def within(self, at: Place) -> list[str]:
        """The fields that differ within a step, which both runs know."""
        known = [what for what in _WITHIN if getattr(self.a[at], what) and getattr(self.b[at], what)]
        return [what for what in known if getattr(self.a[at], what) != getattr(self.b[at], what)]

    def first_value(self, at: Place) -> str:
        """The first value that differs within a step, in words; "" if none does, or operators were not recorded."""
        one, other = self.in_a.get(at), self.in_b.get(at)
        if one is None or other is None:
            return ""
        return first_output(one, other) or first_gradient(one, other)

    @cached_property
    def first(self) -> Place | None:
        """The first step that does not begin alike, or in which something differs."""
        asked = (self.begins_apart, self.within, self.first_value)
        return next((at for at in self.common if any(differs(at) for differs in asked)), None)

    def before(self, at: Place) -> Place | None:
        """The last step before this one in both runs, on the same rank."""
        return max((one for one in self.common if one[0] < at[0] and one[1] == at[1]), default=None)

    def worth_recording(self) -> Sequence[str]:
        """The options of `run` with which both programs, recorded again, tell more; none if nothing would."""
        at = self.first
        if at is None:
            return ()
        if not self.begins_apart(at):
            asked = at if self.within(at)[:1] == ["returned"] else None
        else:
            asked = self.before(at) if self.split(self.a[at], self.b[at])[0][0] == _FIRST else None
        if asked is None or asked in self.in_a or asked in self.in_b:
            return ()
        if at[0] - asked[0] > 1:
            return "--every", "1", "--steps", f"{asked[0]}:{at[0] + 1}"
        return "--ops", "--steps", f"{asked[0]}:{asked[0] + 1}"

    def parting(self) -> str:
        """Where the runs first differ, and in which fields; or that they never do."""
        if not self.common:
            return ""
        at = self.first
        if at is None:
            return self.alike()
        where = f" on rank {at[1]}" if any(rank for _, rank in self.common) else ""
        text = self.apart(at) if self.begins_apart(at) else self.apart_within(at)
        return f"the runs part at step {at[0]:,}{where}{text}"

    def alike(self) -> str:
        """Words on runs whose recorded steps began alike, and in which nothing is known to differ."""
        steps = len({step for step, _ in self.common})
        every = "the step that both have recorded" if steps == 1 else f"all {steps:,} steps that both have recorded"
        text = f"bit for bit, {every} began alike"
        if self.in_a.keys() & self.in_b.keys() >= {*self.common}:
            text += ", and all outputs and gradients are the same"
        ends = (at for at in self.a.keys() & self.b.keys() if self.a[at].after and self.b[at].after)
        last_step = next((at[0] - 1 for at in ends if self.begins_apart(at)), None)
        return text if last_step is None else f"{text}; the optimizer's step {last_step:,} made them differ"

    def apart_within(self, at: Place) -> str:
        """Which fields differ in a step that began alike, and the first value that does."""
        fields, same = self.within(at), self.split(self.a[at], self.b[at])[1]
        known = [_WORDS[what] for what in same] + [_WITHIN["returned"]] * (fields[:1] not in ([], ["returned"]))
        text = f", in {_WITHIN[fields[0]]}" if fields else ""
        text += f": {value}" if (value := self.first_value(at)) else ""
        return f"{text}; {listed(known)} are still the same, bit for bit"

    def apart(self, at: Place) -> str:
        """Which fields differ as a step begins, and which do not."""
        differing, same = self.split(self.a[at], self.b[at])
        text = f", in {_listed(differing)}{self.first_weight(at)}"
        text += f"; {_listed(same)} are still the same, bit for bit" if same else ""
        before = self.before(at)
        if before is None or differing[0] != _FIRST:
            return text
        if at[0] - before[0] > 1:
            return f"{text}; step {before[0]:,} began alike, and the steps between them were not recorded"
        return f"{text}; step {before[0]:,} began alike: look at {self.cause(before)}"

    def cause(self, at: Place) -> str:
        """Words on the possible causes of a difference that nothing recorded in the step explains."""
        if at in self.in_a and at in self.in_b:
            return "the optimizer's step, and code after it, as its outputs and gradients are the same"
        if all(run[at].returned and run[at].loss for run in (self.a, self.b)):
            return "code after its loss, or kernels that add in no fixed order, as its output and loss are the same"
        return "its targets, its code, or kernels that add in no fixed order"

    def first_weight(self, at: Place) -> str:
        """The first tensor of the weights that differs, in brackets; "" if none does, or its name is not known."""
        names = next((one.names for one in self.a.values() if one.names and one.rank == at[1]), ())
        ours, theirs = (digits(run[at].each) for run in (self.a, self.b))
        numbers = [number for number, pair in enumerate(zip(ours, theirs, strict=False)) if len({*pair}) > 1]
        if not numbers or not len(ours) == len(theirs) == len(names):
            return ""
        more = f"and {counted(len(numbers) - 1, 'more tensor')}" if numbers[1:] else "alone"
        return f" ({names[numbers[0]]} {more})"


def first_output(one: Values, other: Values) -> str:
    """The first output that differs, in words, or the first that one of two steps alone has; "" if all are the same."""
    ours, theirs = (pairs(line.output_names, line.outputs) for line in (one, other))
    for (name, value), (named, valued) in zip(ours, theirs, strict=False):
        if without_line(name) != without_line(named):
            return f"A computes {name} where B computes {named}"
        if value != valued:
            return f"the first output that differs comes from {name}"
    further = ours[len(theirs) :] or theirs[len(ours) :]
    return f"{'A' if ours[len(theirs) :] else 'B'} alone computes {further[0][0]}" if further else ""


def first_gradient(one: Values, other: Values) -> str:
    """The first gradient that differs, in words, in the order in which the first step got them; "" if none does."""
    values = {without_line(name): value for name, value in pairs(other.gradient_names, other.gradients)}
    for name, value in pairs(one.gradient_names, one.gradients):
        if values.get(without_line(name), value) != value:
            return f"all outputs are the same, and the first gradient that differs belongs to {name}"
    return ""


def digits(each: str, number: int = DIGITS) -> list[str]:
    """The digits of each tensor."""
    return [each[n : n + number] for n in range(0, len(each), number)]


def without_line(name: str) -> str:
    """The name of a value, without the line of the program, which may have moved."""
    return name.partition(" at ")[0]


def pairs(names: Sequence[str], values: str) -> list[tuple[str, str]]:
    """The names of values, each with its digits."""
    return [*zip(names, digits(values, VALUE_DIGITS), strict=False)]


def _listed(what: Sequence[str]) -> str:
    return listed([_WORDS[one] for one in what])

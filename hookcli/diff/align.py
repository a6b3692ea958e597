"""Alignment of two models: modules are paired by name, then by order and type if they were renamed.

Operators of paired modules are paired by function, in the order in which they ran. What is left are the differences
between the two structures, in words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import NamedTuple

from hookcli.table.names import operator_owner


class NamedPart(NamedTuple):
    """A module, parameter or operator: its fully qualified name and its class.

    For a parameter, its module's class; for an operator, its function.
    """

    fqn: str
    type: str

    @property
    def is_operator(self) -> bool:
        """True for a call of a function in a module's forward."""
        return operator_owner(self.fqn) is not None


@dataclass(frozen=True)
class Alignment:
    """The modules and operators of A and B that belong together, in A's order, and those that only one model has."""

    pairs: Sequence[tuple[NamedPart, NamedPart]]
    removed: Sequence[NamedPart]
    added: Sequence[NamedPart]

    @property
    def renamed(self) -> list[tuple[NamedPart, NamedPart]]:
        """The modules whose names differ; names of operators follow from their modules and order."""
        return [(a, b) for a, b in self.pairs if a.fqn != b.fqn and not a.is_operator]

    @cached_property
    def in_b(self) -> dict[str, str]:
        """The names in B of the modules of A."""
        return {a.fqn: b.fqn for a, b in self.pairs}

    @cached_property
    def in_a(self) -> dict[str, str]:
        """The names in A of the modules of B."""
        return {b.fqn: a.fqn for a, b in self.pairs}

    def name_in(self, side: int, fqn: str) -> str | None:
        """The name in B (`side` 1) of a module or operator of A, or in A (0) of one of B; None if it has none there.

        An operator that ran after the two were aligned, as with other values, has the same name in its module there.
        """
        names, back = (self.in_b, self.in_a) if side else (self.in_a, self.in_b)
        owner = operator_owner(fqn)
        if fqn in names or owner is None or owner not in names or fqn in self._known[1 - side]:
            return names.get(fqn)
        same = names[owner] + fqn[len(owner) :]
        return same if same not in back else None

    @cached_property
    def _known(self) -> tuple[set[str], set[str]]:
        """The names in A and in B that have no counterpart."""
        return {place.fqn for place in self.removed}, {place.fqn for place in self.added}

    def counterpart(self, fqn: str) -> str:
        """The name in B of a parameter or buffer of A; the same where its module has no counterpart."""
        owner, _, name = fqn.rpartition(".")
        return f"{self.in_b.get(owner, owner)}.{name}".lstrip(".")


def align(a: Iterable[NamedPart], b: Iterable[NamedPart]) -> Alignment:
    """Pair the modules and operators of two models, each given in its model's order, every name once.

    Modules of the same name and type are paired first. The others are paired if they stand in the same order between
    these: by type and the last part of the name (a container was renamed), then by type alone. At last, modules of the
    same name whose type changed are paired. Operators are paired if their modules are, and operators of the loss
    function, by function, whether it works in place or not, in the order in which they ran; their numbers don't matter.
    """
    ours, theirs = list(a), list(b)
    paired = _modules(*([place for place in side if not place.is_operator] for side in (ours, theirs)))
    paired |= _operators(_by_owner(ours), _by_owner(theirs), paired)
    taken = set(paired.values())
    return Alignment(
        pairs=[(place, paired[place]) for place in ours if place in paired],
        removed=[place for place in ours if place not in paired],
        added=[place for place in theirs if place not in taken],
    )


Pairs = dict[NamedPart, NamedPart]
Likeness = Callable[[NamedPart], Hashable]


def _modules(ours: Sequence[NamedPart], theirs: Sequence[NamedPart]) -> Pairs:
    paired: Pairs = {place: place for place in set(ours) & set(theirs)}
    paired |= _in_order(ours, theirs, paired, lambda part: (part.type, part.fqn.rpartition(".")[2]))
    paired |= _in_order(ours, theirs, paired, lambda part: part.type)
    taken = set(paired.values())
    by_name = {place.fqn: place for place in theirs if place not in taken}
    return paired | {place: by_name[place.fqn] for place in ours if place not in paired and place.fqn in by_name}


def _operators(ours: Mapping[str, list[NamedPart]], theirs: Mapping[str, list[NamedPart]], modules: Pairs) -> Pairs:
    pairs: Pairs = {}
    in_both = (ours.keys() & theirs.keys()) - {b.fqn for b in modules.values()}  # the loss function is not a module
    owners = {owner: owner for owner in in_both} | {a.fqn: b.fqn for a, b in modules.items()}
    for a, b in owners.items():
        pairs |= _in_order(ours.get(a, []), theirs.get(b, []), {}, lambda operator: operator.type.removesuffix("_"))
    return pairs


def _by_owner(places: Iterable[NamedPart]) -> dict[str, list[NamedPart]]:
    """Group the operators among these places by the modules in which they ran."""
    owned: dict[str, list[NamedPart]] = defaultdict(list)
    for place in places:
        if (owner := operator_owner(place.fqn)) is not None:
            owned[owner].append(place)
    return owned


def _in_order(ours: Sequence[NamedPart], theirs: Sequence[NamedPart], paired: Pairs, likeness: Likeness) -> Pairs:
    """Pair places that look the same and are in the same order between the same paired places of both models."""
    if len(paired) in (len(ours), len(theirs)):
        return {}
    back = {other: place for place, other in paired.items()}
    left = _between(ours, {place: place for place in paired})
    right = _between(theirs, back)
    pairs: Pairs = {}
    for after in left.keys() & right.keys():
        here, there = left[after], right[after]
        matcher = SequenceMatcher(None, list(map(likeness, here)), list(map(likeness, there)), autojunk=False)
        for i, j, size in matcher.get_matching_blocks():
            pairs |= zip(here[i : i + size], there[j : j + size], strict=True)
    return pairs


def _between(places: Sequence[NamedPart], paired: Pairs) -> dict[NamedPart | None, list[NamedPart]]:
    """Group the unpaired places by the last paired place before them, by A's name."""
    after: NamedPart | None = None
    groups: dict[NamedPart | None, list[NamedPart]] = defaultdict(list)
    for place in places:
        if place in paired:
            after = paired[place]
        else:
            groups[after].append(place)
    return groups


_NAMED = 3


def structure(alignment: Alignment) -> list[tuple[str, str]]:
    """The differences in structure: a name, and a sentence on it."""
    lines = [(place.fqn, f"{_named(place)} is in A only") for place in _outermost(alignment.removed)]
    lines += [(place.fqn, f"{_named(place)} is in B only") for place in _outermost(alignment.added)]
    lines += [(a.fqn, f"{_name(a)} is called {_name(b)} in B") for a, b in alignment.renamed]
    retyped = [(a, b) for a, b in alignment.pairs if a.fqn == b.fqn and a.type != b.type]
    return lines + [(a.fqn, f"{_name(a)} is {a.type} in A and {b.type} in B") for a, b in retyped]


def structure_line(alignment: Alignment) -> str:
    """The differences in structure in one line, with the first names of each sort; "" if there are none."""
    groups = [
        f"{len(names)} {what} ({', '.join(names[:_NAMED])}{', ...' if names[_NAMED:] else ''})"
        for what, names in (
            ("only in A", [_name(place) for place in _outermost(alignment.removed)]),
            ("only in B", [_name(place) for place in _outermost(alignment.added)]),
            ("renamed", [f"{_name(a)} to {_name(b)}" for a, b in alignment.renamed]),
        )
        if names
    ]
    return "the structures differ: " + "; ".join(groups) if groups else ""


def _outermost(places: Sequence[NamedPart]) -> list[NamedPart]:
    """The modules, and the operators that do not just belong to these."""
    modules = {place.fqn for place in places}
    return [place for place in places if operator_owner(place.fqn) not in modules]


def _name(place: NamedPart) -> str:
    return place.fqn or "(model)"


def _named(place: NamedPart) -> str:
    return _name(place) + (f" ({place.type})" if place.type else "")

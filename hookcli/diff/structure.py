"""The differences between the structures of two models, in words."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.diff.align import Alignment, NamedPart
from hookcli.table.names import operator_owner

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

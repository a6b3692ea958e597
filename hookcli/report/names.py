"""Fully qualified names of modules, operators and parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice

from hookcli.errors import UsageError, nearest, unknown

_OPERATOR = re.compile(r":[^.:]+_\d+$")


def is_operator(fqn: str) -> bool:
    """True for the name of an operator: its module's, a colon, and its own with its number, as in `layer1:add_1`."""
    return ":" in fqn and _OPERATOR.search(fqn) is not None


def owner_of(fqn: str) -> str:
    """The module that a module, parameter or operator is directly in; "" for the model."""
    return fqn.rpartition(":" if is_operator(fqn) else ".")[0]


def is_within(fqn: str, owner: str) -> bool:
    """True for a module, parameter or operator that is a part, at any depth, of the module `owner` ("": the model)."""
    if not owner or fqn == owner:
        return fqn != owner
    return fqn.startswith(f"{owner}.") or (fqn.startswith(f"{owner}:") and owner_of(fqn) == owner)


def is_within_any(fqn: str, owners: Iterable[str]) -> bool:
    """True for a part of any of these modules."""
    return any(is_within(fqn, owner) for owner in owners)


def around(fqn: str) -> Iterator[str]:
    """The names of the modules around a module, parameter or operator, from the innermost to the model itself, ""."""
    while fqn:
        fqn = owner_of(fqn)
        yield fqn


def name_filter(pattern: str | None, names: Mapping[str, str]) -> Callable[[str, str], bool]:
    """The test of a name (and the type of its module, "" for other names) that `--match` asks for.

    A pattern is a glob, and "(model)" the model itself. Without wildcards, and if it is none of these `names` (with
    their types), it also matches as a part of a name or type, in any case: `conv` is in `layer1.0.conv1` and `Conv2d`.
    """
    if pattern is None:
        return lambda fqn, kind: True
    if pattern == "(model)":
        return lambda fqn, kind: not fqn
    if pattern in names or not pattern or is_operator(pattern) or any(wildcard in pattern for wildcard in "*?["):
        return lambda fqn, kind: fnmatchcase(fqn, pattern)
    return _part_of(pattern)


def no_match(pattern: str, names: Iterable[str], kind: str = "module or parameter") -> str:
    """A sentence on a pattern that matches none of these names, with a pattern that does, or the nearest names."""
    known = [*filter(None, names)]
    near = [*islice(_fitting(pattern, known), 1)] or nearest(pattern, known)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no {kind} matches {pattern!r}{hint}"


def _fitting(pattern: str, names: Sequence[str]) -> Iterator[str]:
    """The pattern without its first names, or with any names before it, where that fits: a wrapper more or less."""
    parts = pattern.split(".")
    shorter = (".".join(parts[number:]) for number in range(1, len(parts)))
    for changed in (*shorter, f"*.{pattern}"):
        if changed.strip("*?.") and any(fnmatchcase(name, changed) for name in names):
            yield changed


def checked_filter(match: str | None, kind: str | None, names: Mapping[str, str]) -> Callable[[str, str], bool]:
    """`name_filter` of `--match`. Raises UsageError if `--match` or `--type` fits none of these names and types."""
    matches = name_filter(match, names)
    if names and kind is not None and kind not in names.values():
        raise UsageError(unknown("--type", kind, sorted({*filter(None, names.values())})))
    if names and not any(matches(*named) for named in names.items()):
        raise UsageError(f"--match: {no_match(match or '', names)}")
    return matches


def is_also_a_part(pattern: str, names: Mapping[str, str]) -> bool:
    """True if `name_filter` takes a pattern for one of these names, although others have it as a part.

    The module's own parameters don't count, since its name stands for them, too.
    """
    has = _part_of(pattern)
    own = (pattern, *(fqn for fqn, kind in names.items() if not kind and fqn.rpartition(".")[0] == pattern))
    return pattern in names and any(has(*named) for named in names.items() if pattern and named[0] not in own)


def _part_of(text: str) -> Callable[[str, str], bool]:
    part = text.lower()
    return lambda fqn, kind: part in fqn.lower() or part in kind.lower()

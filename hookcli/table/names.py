"""Fully qualified names of modules, of their parameters, and of the operators that run in them.

An operator is named after the module that runs and the operator's name, numbered in each call of the module:
`layer1.0:add_1`, or `:add_1` in the model itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice

from rich.cells import cell_len

from hookcli.errors import UsageError, nearest, shortened, unknown

# A module's name may also hold a colon; it is taken for an operator's only if it ends as one.
_OPERATOR = re.compile(r"(.*):[^.:]+_\d+", re.DOTALL)


def operator_owner(fqn: str) -> str | None:
    """The module in which an operator runs ("": the model); None for the name of a module or parameter."""
    match = _OPERATOR.fullmatch(fqn) if ":" in fqn else None
    return match[1] if match else None


def is_operator(fqn: str) -> bool:
    """True for the name of an operator."""
    return operator_owner(fqn) is not None


def owner_of(fqn: str) -> str:
    """The innermost module around a module, parameter or operator; "" for the model, and for the model itself."""
    owner = operator_owner(fqn)
    return fqn.rpartition(".")[0] if owner is None else owner


def relative(fqn: str, owner: str) -> str:
    """The rest of the name of a part of `owner`: `conv1`, or `:add_1` for an operator; other names as they are."""
    return fqn[len(owner) :].removeprefix(".") if is_within(fqn, owner) else fqn


def in_words(fqn: str, owner: str = "") -> str:
    """The name of a part of `owner` in a sentence; a bare number would read as a count: stages.0.1, layer 2."""
    known = (name for name in (relative(fqn, owner), fqn) if not _BARE.fullmatch(name))
    return next(known, f"layer {fqn}") or "(model)"


_BARE = re.compile(r"[\d.-]+")


_NUMBERED = re.compile(r"\d+(-\d+)?\b.*")


def abbreviated(names: Sequence[str], width: int) -> list[str]:
    """The names, without parts of their middle where they are wider: bert…layer.0-3.intermediate.

    No part is broken unless it is longer than any word, and no name becomes another's: `width` grows until both hold.
    """
    different, longest = len(set(names)), max(map(cell_len, names), default=0)
    split = [[*map(_clipped, re.split(r"(?=[.:])", name))] for name in names]
    common = set[str]().union(*split[:1]).intersection(*split[1:]) if different > 1 else ()
    for most in range(width, longest, max((longest - width) * len(names) // _TRIES, 1)):
        both = zip(names, split, strict=True)
        short = [name if cell_len(name) <= most else _shortened(parts, most, common) for name, parts in both]
        if len(set(short)) == different and max(map(cell_len, short)) <= most:
            return short
    return [*names]


_TRIES = 2000  # of single names; with many names, in larger steps
_LAST_TWO = 36  # columns of the last two parts of a name, which stay together if they are no longer
_WORD = 40  # columns of the longest part that is left whole
_END = 12  # columns of either end of a longer one


def _clipped(part: str) -> str:
    """The part, or the two ends of one that is longer than any word."""
    width = cell_len(part)
    end = _END * len(part) // max(width, 1)
    return part if width <= _WORD else f"{part[:end]}…{part[-end:]}"


def _shortened(parts: Sequence[str], width: int, common: Collection[str]) -> str:
    """The last part of a name and as many others as fit: those that not all names have first, numbers before words."""
    name, last = "".join(parts), len(parts) - 1
    if cell_len(name) <= width or last < 2:
        return name
    together = parts[last - 1] not in common and cell_len(_with_gaps(parts, {last - 1, last})) <= _LAST_TWO
    kept = {last - 1, last} if together else {last}
    inner = sorted(
        range(last - 1, -1, -1), key=lambda i: (parts[i] in common, not _NUMBERED.fullmatch(parts[i][1:]), i > 0)
    )
    for i in inner:
        if cell_len(_with_gaps(parts, kept | {i})) <= width:
            kept.add(i)
    return _with_gaps(parts, kept)


def _with_gaps(parts: Sequence[str], kept: Collection[int]) -> str:
    """The parts that are kept, with … in place of others, and of the point after these."""
    beginnings = {i for i in kept if i and i - 1 not in kept}
    return "".join(f"…{parts[i].removeprefix('.')}" if i in beginnings else parts[i] for i in sorted(kept))


def is_within(fqn: str, owner: str) -> bool:
    """True for a part, at any depth, of the module `owner` ("": the model): a module, parameter or operator."""
    return fqn != owner and (not owner or fqn.startswith(f"{owner}.") or operator_owner(fqn) == owner)


def is_within_any(fqn: str, owners: Iterable[str]) -> bool:
    """True for a part of any of these modules."""
    return any(is_within(fqn, owner) for owner in owners)


def around(fqn: str) -> Iterator[str]:
    """The names of the modules around a place, from the innermost to the model itself, ""."""
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
    if (
        pattern in names
        or not pattern
        or operator_owner(pattern) is not None
        or any(wildcard in pattern for wildcard in "*?[")
    ):
        return lambda fqn, kind: fnmatchcase(fqn, pattern)
    return _part_of(pattern)


def no_match(pattern: str, names: Iterable[str], kind: str = "module or parameter") -> str:
    """A sentence on a pattern that matches none of these names, with a pattern that does, or the nearest names."""
    candidates = [*filter(None, names)]
    near = [*islice(_fitting(pattern, candidates), 1)] or nearest(pattern, candidates)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no {kind} matches {shortened(pattern)!r}{hint}"


def _fitting(pattern: str, names: Sequence[str]) -> Iterator[str]:
    """The pattern without its first names, or with any names before it, where that fits: a wrapper more or less."""
    parts = pattern.split(".")
    shorter = (".".join(parts[number:]) for number in range(1, len(parts)))
    for changed in (*shorter, f"*.{pattern}"):
        if changed.strip("*?.") and any(fnmatchcase(name, changed) for name in names):
            yield changed


def checked_filter(
    match: str | None, type_: str | None, names: Mapping[str, str], *, kind: str = "module or parameter"
) -> Callable[[str, str], bool]:
    """`name_filter` of `--match`. Raises UsageError if `--match` or `--type` fits none of these names and types."""
    matches = name_filter(match, names)
    if names and type_ is not None and type_ not in names.values():
        raise UsageError(unknown("--type", type_, sorted({*filter(None, names.values())})))
    if names and not any(matches(*named) for named in names.items()):
        raise UsageError(f"--match: {no_match(match or '', names, kind)}")
    return matches


def is_also_a_part(pattern: str, names: Mapping[str, str]) -> bool:
    """True if `name_filter` takes a pattern for one of these names, although others have it as a part.

    The module's own parameters don't count, since its name stands for them, too.
    """
    has = _part_of(pattern)
    own = (pattern, *(fqn for fqn, kind in names.items() if not kind and owner_of(fqn) == pattern))
    return pattern in names and any(has(*named) for named in names.items() if pattern and named[0] not in own)


def _part_of(text: str) -> Callable[[str, str], bool]:
    part = text.lower()
    return lambda fqn, kind: part in fqn.lower() or part in kind.lower()


def numbered_lists(names: Iterable[str]) -> list[str]:
    """The parts of names that have only numbered parts, such as `layers`: no level of depth, as lists of modules."""
    children: dict[str, set[str]] = defaultdict(set)
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            children[".".join(parts[:depth])].add(parts[depth])
    return [owner for owner, below in children.items() if all(map(str.isdecimal, below))]

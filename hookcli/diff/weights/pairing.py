"""Pairs the tensors of two files: by name, by a prefix that one side's names have, and by equal bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from hookcli.tensors.files.stored import BLOCK, StoredTensor


@dataclass(frozen=True, slots=True)
class Pairing:
    """Tensors that belong together, in A's order, and those that only one side has.

    `prefix` begins all names of B but not those of A ("model."), or, after a minus, all names of A but not those of B;
    "" if the names are alike.
    """

    pairs: Sequence[tuple[StoredTensor, StoredTensor]]
    removed: Sequence[StoredTensor]
    added: Sequence[StoredTensor]
    prefix: str = ""


def pair(a: Sequence[StoredTensor], b: Sequence[StoredTensor]) -> Pairing:
    """Pair the tensors of A and B. Only those whose names have no counterpart are read, for their bytes."""
    ours, theirs = {x.name: x for x in a}, {y.name: y for y in b}
    names = {name: name for name in ours if name in theirs}
    prefix = _prefix([n for n in ours if n not in names], [n for n in theirs if n not in names])
    for name in ours:
        other = name.removeprefix(prefix[1:]) if prefix.startswith("-") else prefix + name
        if prefix and name not in names and other != name and other in theirs and other not in ours:
            names[name] = other
    taken = set(names.values())
    names |= _by_bytes([x for x in a if x.name not in names], [y for y in b if y.name not in taken])
    taken = set(names.values())
    return Pairing(
        [(x, theirs[names[x.name]]) for x in a if x.name in names],
        [x for x in a if x.name not in names],
        [y for y in b if y.name not in taken],
        prefix,
    )


def _prefix(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """The prefix by which most names without a counterpart differ; after a minus if A's have it. "" if few have one."""
    counts: Counter[str] = Counter()
    for sign, short, long in (("", ours, theirs), ("-", theirs, ours)):
        names = set(short)
        for name in long:
            parts = name.split(".")
            tails = (".".join(parts[n:]) for n in range(1, len(parts)))
            counts.update(f"{sign}{name.removesuffix(tail)}" for tail in tails if tail in names)
    (prefix, count) = max(counts.items(), key=lambda item: (item[1], -len(item[0])), default=("", 0))
    return prefix if count * 2 > min(len(ours), len(theirs)) else ""


def _by_bytes(ours: Sequence[StoredTensor], theirs: Sequence[StoredTensor]) -> dict[str, str]:
    """Pair names of tensors of the same shape, dtype and bytes; of several, those of the same last name first."""
    shapes = {_kind(x) for x in ours} & {_kind(y) for y in theirs}
    unpaired: dict[object, list[str]] = defaultdict(list)
    for y in theirs:
        if _kind(y) in shapes and not y.unreadable:
            unpaired[_kind(y), _digest(y)].append(y.name)
    names_in_b: dict[str, str] = {}
    for x in ours:
        if _kind(x) in shapes and not x.unreadable and (names := unpaired.get((_kind(x), _digest(x)))):
            last = x.name.rpartition(".")[2]
            other = next((name for name in names if name.rpartition(".")[2] == last), names[0])
            names.remove(other)
            names_in_b[x.name] = other
    return names_in_b


def _kind(tensor: StoredTensor) -> object:
    return tensor.shape, tensor.dtype


def _digest(tensor: StoredTensor) -> bytes:
    digest = blake2b(digest_size=16)
    for block in tensor.blocks(BLOCK):
        digest.update(block.data.cast("B"))
    return digest.digest()

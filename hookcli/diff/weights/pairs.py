"""Pairs the tensors of two files, by names, prefix and bytes, and measures how far the two of a pair are apart.

Memory is bounded: tensors are read block by block.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from hookcli.diff.tolerance import eps
from hookcli.table import raised
from hookcli.table.discrepancy import Discrepancy
from hookcli.tensors.files.statistics import WIDEST, LowRank, low_rank
from hookcli.tensors.files.stored import BLOCK, Floats, StoredTensor, Values, values


@dataclass(frozen=True, slots=True)
class Pairing:
    """Tensors that belong together, in A's order, and those that only one side has.

    `prefix` begins all names of B but not of A ("model."), or, after a minus, all names of A but not of B;
    "" if the names are alike.
    """

    pairs: Sequence[tuple[StoredTensor, StoredTensor]]
    removed: Sequence[StoredTensor]
    added: Sequence[StoredTensor]
    prefix: str = ""

    def among(self, names: set[str]) -> Pairing:
        """The pairs of which a tensor has one of these names, and the lone tensors that have one."""
        pairs = [(x, y) for x, y in self.pairs if names & {x.name, y.name}]
        removed, added = ([x for x in side if x.name in names] for side in (self.removed, self.added))
        return Pairing(pairs, removed, added, self.prefix)


def pair(a: Sequence[StoredTensor], b: Sequence[StoredTensor]) -> Pairing:
    """Pair the tensors of A and B. Only those whose names have no counterpart are read, for their bytes."""
    ours, theirs = {x.name: x for x in a}, {y.name: y for y in b}
    names = {name: name for name in ours if name in theirs}

    def alone() -> tuple[list[StoredTensor], list[StoredTensor]]:
        taken = set(names.values())
        return [x for x in a if x.name not in names], [y for y in b if y.name not in taken]

    only_a, only_b = ([x.name for x in side] for side in alone())
    prefix = _prefix(only_a, only_b)
    for name in only_a:
        other = name.removeprefix(prefix[1:]) if prefix.startswith("-") else prefix + name
        if other in theirs and other not in ours:
            names[name] = other
    names |= _by_bytes(*alone())
    return Pairing([(x, theirs[names[x.name]]) for x in a if x.name in names], *alone(), prefix)


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
    """Pair names of tensors of the same shape, dtype and bytes; of several, ones of the same last name first."""
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


_MERGED = 256  # blocks whose discrepancies wait to be merged
_NARROWEST = 8  # rows or columns of a matrix whose rank is worth a word
_LOW = 4  # a rank is low up to this part of the smaller dimension


def same_bytes(a: StoredTensor, b: StoredTensor) -> bool:
    """True if both are coded alike and have the same bytes."""
    return a.coding == b.coding and all(
        np.array_equal(x.view("u1"), y.view("u1")) for x, y in zip(a.blocks(BLOCK), b.blocks(BLOCK), strict=True)
    )


def distance(a: StoredTensor, b: StoredTensor, tell: Callable[[int], object]) -> Discrepancy:
    """The discrepancy of two tensors of one shape; complex values count as pairs of real ones.

    If one tensor is real, its imaginary parts are 0.
    """
    parts: list[Discrepancy] = []
    paired = a.is_complex or b.is_complex
    numbers = b.numel * (2 if paired else 1)
    for x, y in zip(_numbers(a, paired), _numbers(b, paired), strict=True):
        parts.append(_apart(x, y))
        tell(round(y.size / numbers * b.nbytes))
        if len(parts) == _MERGED:
            parts = [Discrepancy.merge(parts)]
    return Discrepancy.merge(parts)


def change_of_low_rank(a: StoredTensor, b: StoredTensor, discrepancy: Discrepancy) -> LowRank | None:
    """The rank of ``B - A``, if it is low and more than rounding to the dtypes explains; else None."""
    smaller = min(a.shape[0], a.columns) if a.is_matrix else 0
    is_complex = a.is_complex or b.is_complex
    if (
        smaller < _NARROWEST
        or a.columns > WIDEST
        or not 0 < discrepancy.max_abs < math.inf
        or discrepancy.nonfinite
        or is_complex
    ):
        return None
    unit = discrepancy.max_abs  # in whose units float32 suffices
    # Rounding to a spacing of eps has a variance of eps**2 / 12 of the element's square at most. B was rounded after
    # the change; if the dtypes differ, one side was before it, too.
    times = 1 if a.dtype == b.dtype else 2
    rounding = times * (eps(a.dtype, b.dtype) * max(discrepancy.a_l2, discrepancy.b_l2) / unit) ** 2 / 12

    def rows() -> Iterator[Floats]:
        return ((y - x) / unit for x, y in zip(a.rows(), b.rows(), strict=True))

    return low_rank(rows, a.columns, (discrepancy.error_l2 / unit) ** 2, rounding, smaller // _LOW)


def _numbers(tensor: StoredTensor, paired: bool) -> Iterator[Values]:
    """The elements as float64; `paired`: as pairs of a real and an imaginary part."""
    for block in tensor.blocks(BLOCK):
        if block.dtype.kind == "c":
            yield block.view(f"f{block.dtype.itemsize // 2}").astype(np.float64)
        else:
            real = values(tensor.coding, block)
            yield np.stack((real, np.zeros_like(real)), axis=1).ravel() if paired else real


def _apart(a: Values, b: Values) -> Discrepancy:
    """The discrepancy of two blocks, over the elements that are finite in both."""
    n, nonfinite = a.size, 0
    with np.errstate(invalid="ignore", over="ignore"):
        error = b - a
        total = error.sum()
    if not math.isfinite(total):
        both = np.isfinite(a) & np.isfinite(b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        nonfinite = int(np.count_nonzero(~both & ~same))
        a, b, error = a[both], b[both], error[both]
    if not error.size:
        return Discrepancy(numel=n, nonfinite=nonfinite)
    size = np.abs(error)
    norms = (_norm(error), _norm(a), _norm(b))
    return Discrepancy(n, float(size.max()), float(size.sum()) / n, *norms, nonfinite, finite=error.size)


def _norm(x: Values) -> float:
    """The l2 norm; in units of the largest magnitude where squares leave float64's range."""
    with np.errstate(over="ignore", under="ignore"):
        squares = float(np.dot(x, x))
    if 1e-260 < squares < 1e300 or not x.any():
        return math.sqrt(squares)
    exponent = math.frexp(float(np.abs(x).max()))[1]
    scaled = raised(x, -exponent)
    return float(raised(math.sqrt(float(np.dot(scaled, scaled))), exponent))

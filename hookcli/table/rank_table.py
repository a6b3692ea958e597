"""The rows of several ranks by place in the model, with their statistics in an array; and which of them are copies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, zip_longest
from typing import Any, Literal

import numpy as np

from hookcli.table import STATS_KEYS, TensorStats
from hookcli.table.columns import place_of
from hookcli.table.histogram import Histogram
from hookcli.table.measured_rows import MeasuredRows
from hookcli.table.merge import concatenated
from hookcli.table.merging import Mask, merge_parts, parts_agree
from hookcli.table.ranks import ALIKE, Parts, ranks_named

DIVIDED = "hookcli can't tell how tensor-parallel ranks split this tensor: the shape is one rank's"
CONSTANT = "the same constant on all tensor-parallel ranks, copies or parts: counted once, with the shape of one rank"
LAYOUT = ("sharded", "mesh", "partial")
"""The keys of a row that tell how a tensor is laid out over ranks (`tensors.tree.layout_of`)."""
Values = Mapping[str, Any]
Shard = tuple[tuple[int, ...], tuple[int, ...]]
"""The ranks of a mesh, and a place among the shards there; both empty for a tensor that is none."""
Of = Literal["all", "unit", "rank"]
"""The ranks whose statistics a merged row has: all ranks, the first unit of ranks, or the first rank."""


@dataclass(frozen=True, slots=True)
class PlaceOnRanks:
    """A place in the model: the values that ranks have for it, each with these ranks.

    `sizes` are the shapes of the tensor in each unit of ranks that have one together, with the number of such units.
    `alike` and `same`: the units' statistics agree but for rounding; or to the last bit, and are not of a constant.
    `divided` and `constant`: the ranks of a unit differ, or agree as parts of a constant tensor do, too.
    """

    groups: Sequence[tuple[Values, Sequence[int]]]
    sizes: Sequence[tuple[Sequence[int], int]]
    missing: Sequence[int]
    alike: bool
    same: bool
    units: bool
    divided: bool
    constant: bool

    @property
    def remark(self) -> str:
        """A remark on ranks without a part, and on parts whose places in the whole tensor are not known."""
        unseen = f"not seen on {ranks_named(self.missing)}" if self.missing else ""
        return "; ".join(filter(None, (unseen, DIVIDED if self.divided else CONSTANT if self.constant else "")))

    @property
    def numel(self) -> int:
        """The number of elements of all units' tensors together."""
        return sum(math.prod(size) * number for size, number in self.sizes)

    def concatenated(self) -> list[int] | None:
        """The shape of the units' tensors concatenated along dimension 0; None if they do not fit."""
        parts: Iterable[list[int] | None] = ([s[0] * number, *s[1:]] if s else [] for s, number in self.sizes)
        return reduce(concatenated, parts)


class RankTable:
    """The rows of all ranks by place, in the order of the first rank that has it, and an array of their statistics."""

    def __init__(self, parts: Parts) -> None:
        self._ranks = list(parts)
        self._units = _units(parts)
        rows = [MeasuredRows.of(part.rows) for part in parts.values()]
        layouts = _layouts([each.values for each in rows])
        self.keys: dict[tuple[Any, ...], int] = {}
        places = [[self.keys.setdefault(place_of(each), len(self.keys)) for each in values] for values, _ in layouts]
        self._groups: list[list[tuple[Values, Sequence[int]]]] = [[] for _ in self.keys]
        self._figures = np.full((len(rows), len(self.keys), len(STATS_KEYS)), math.nan)
        self._counted = np.zeros((len(rows), len(self.keys)), np.bool_)
        self._hists: dict[tuple[int, int], Histogram | None] = {}
        self._shards: list[set[Shard]] = [set() for _ in self.keys]
        for (values, positions), own in zip(layouts, places, strict=True):
            for position in positions:
                self._figures[position, own] = rows[position].figures
                self._counted[position, own] = True
                self._hists |= zip(((position, place) for place in own), rows[position].hists, strict=False)
            ranks = [self._ranks[position] for position in positions]
            for place, each in zip(own, values, strict=True):
                self._groups[place].append((each, ranks))
                if isinstance(each.get("sharded"), list) or "mesh" in each:
                    # Of the copies of a tensor, or of a shard, that several ranks of a mesh hold, one counts.
                    shard = _shard(each)
                    self._counted[positions if shard in self._shards[place] else positions[1:], place] = False
                    self._shards[place].add(shard)
        self._varies = np.nanmax(self._figures[:, :, STATS_KEYS.index("std")], 0, initial=0.0) > 0
        self._count_copies_once()

    def _count_copies_once(self) -> None:
        """Leave out the copies of plain tensors among ranks between which tensor parallel divides the model."""
        plain = [all(_is_plain(values) for values, _ in groups) for groups in self._groups]
        self._plain = np.array(plain, np.bool_) if self._units else np.zeros(len(plain), np.bool_)
        self._copied = np.zeros(len(plain), np.bool_)
        for earlier, later in (pair for unit in self._units for pair in combinations(unit, 2)):
            pair = [earlier, later]
            both = self._counted[pair].all(0) & self._plain
            copies = both & parts_agree(self._figures[pair], self._counted[pair], ALIKE)
            self._counted[later] &= ~copies
            self._copied |= copies

    def places(self) -> Iterator[PlaceOnRanks]:
        """Each place, in the order of `keys`."""
        alike, same = (parts_agree(self._figures, self._counted, tolerance) for tolerance in (ALIKE, 0.0))
        divided = np.zeros(len(self.keys), np.bool_)
        if self._units:
            same = np.ones(len(self.keys), np.bool_)  # for units of ranks, shard by shard
            for nth in zip_longest(*self._units):
                own = [position for position in nth if position is not None]
                same &= parts_agree(self._figures[own], self._counted[own], 0.0)
            divided = np.logical_or.reduce([self._counted[unit].sum(0) > 1 for unit in self._units])
        single = np.nanmax(self._figures[:, :, STATS_KEYS.index("numel")], 0, initial=0.0) == 1
        constant = self._copied & ~self._varies & ~single
        in_units = np.full(len(self.keys), bool(self._units))
        verdicts = (alike, same & self._varies, in_units, divided & self._plain, constant)
        for groups, *agree in zip(self._groups, *(each.tolist() for each in verdicts), strict=True):
            unseen: list[int] = []
            if sum(len(ranks) for _, ranks in groups) < len(self._ranks):
                seen = {rank for _, ranks in groups for rank in ranks}
                unseen = [rank for rank in self._ranks if rank not in seen]
            yield PlaceOnRanks(groups, self._sizes(groups), unseen, *agree)

    def _sizes(self, groups: Sequence[tuple[Values, Sequence[int]]]) -> list[tuple[Sequence[int], int]]:
        """The shapes of a tensor in each unit of ranks, with the number of units."""
        first = groups[0][0]
        if first.get("kind") == "parameter" or not (self._units or "mesh" in first):
            return [(values["shape"], len(ranks)) for values, ranks in groups]
        units = [tuple(self._ranks[position] for position in unit) for unit in self._units]
        unit_of = {rank: unit for unit in units for rank in unit}
        seen: dict[tuple[int, ...], Sequence[int]] = {}
        for values, ranks in groups:
            for rank in ranks:
                unit = tuple(values["mesh"]) if "mesh" in values else unit_of.get(rank, (rank,))
                seen.setdefault(unit, values["shape"])
        return [(size, 1) for size in seen.values()]

    def stats(self, of: Sequence[Of]) -> list[TensorStats]:
        """The statistics of each place."""
        left = np.array([each == "unit" for each in of], np.bool_)
        for unit in self._units:
            left &= ~self._only(unit, left)
        firsts = self._counted.argmax(0).tolist()
        merged = [each != "rank" for each in of]
        chosen = np.array(merged, np.bool_)
        if self._hists:  # which are lists of any length
            by_place = [np.flatnonzero(self._counted[:, place]).tolist() for place in range(len(merged))]
            parts = [[self._part(position, place) for position in own] for place, own in enumerate(by_place)]
            return [TensorStats.merge(own) if every else own[0] for own, every in zip(parts, merged, strict=True)]
        merged_stats = iter(merge_parts(self._figures[:, chosen], self._counted[:, chosen]))
        return [
            next(merged_stats) if every else self._part(first, place)
            for place, (first, every) in enumerate(zip(firsts, merged, strict=True))
        ]

    def counted(self, of: Sequence[Of]) -> list[list[int]]:
        """The ranks whose figures count at each place, once `stats` is computed: one of several that hold copies."""
        ranks = [[rank for rank, held in zip(self._ranks, each, strict=True) if held] for each in self._counted.T]
        return [own[:1] if each == "rank" else own for own, each in zip(ranks, of, strict=True)]

    def _only(self, unit: Sequence[int], places: Mask) -> Mask:
        """Count this unit of ranks alone at the places where it has a part. Returns these places."""
        own: Mask = self._counted[unit].any(0) & places
        others = np.array([position not in unit for position in range(len(self._ranks))], np.bool_)
        self._counted[np.ix_(others, own)] = False
        return own

    def _part(self, position: int, place: int) -> TensorStats:
        stats = TensorStats.from_floats(self._figures[position, place].tolist())
        return replace(stats, hist=self._hists[position, place]) if self._hists else stats


def _layouts(by_rank: Sequence[Sequence[Values]]) -> list[tuple[Sequence[Values], list[int]]]:
    """The values of rows, each with the positions of the ranks that have them: most ranks have the same.

    Only ranks with the same shards are compared, since each of a thousand ranks may have its own.
    """
    by_shards: dict[tuple[Shard, ...], list[tuple[Sequence[Values], list[int]]]] = defaultdict(list)
    for position, values in enumerate(by_rank):
        alike = by_shards[tuple(_shard(each) for each in values if "sharded" in each or "mesh" in each)]
        positions = next((own for known, own in alike if known is values or known == values), None)
        if positions is None:
            alike.append((values, [position]))
        else:
            positions.append(position)
    return sorted((each for alike in by_shards.values() for each in alike), key=lambda each: each[1][0])


def _units(parts: Parts) -> list[list[int]]:
    """The positions of ranks between which tensor parallel divides the model; none without it."""
    by_ranks: dict[tuple[int, ...], list[int]] = {}
    for position, (rank, part) in enumerate(parts.items()):
        spread = part.meta.get("tensor_parallel")
        by_ranks.setdefault(tuple(spread) if isinstance(spread, list) else (rank,), []).append(position)
    return list(by_ranks.values()) if any(len(unit) > 1 for unit in by_ranks.values()) else []


def _shard(values: Values) -> Shard:
    mesh, sharded = values.get("mesh"), values.get("sharded")
    return tuple(mesh or ()), tuple(sharded) if isinstance(sharded, list) else ()


def _is_plain(values: Values) -> bool:
    """True for a tensor of the batch whose layout over ranks is not known."""
    return values.get("kind") != "parameter" and not any(key in values for key in LAYOUT)

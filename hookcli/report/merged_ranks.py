"""Reports of several ranks as one, merged exactly and as arrays: 1,000 ranks of 1,000 rows take a second or two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hookcli.report import STATS_KEYS, Report, Row, Skipped, TensorStats
from hookcli.report.formatting import shape
from hookcli.report.histogram import Histogram
from hookcli.report.measured_rows import MeasuredRows
from hookcli.report.merging import merge_parts, parts_agree
from hookcli.report.ranks import ALIKE, Parts, common_meta, common_skipped, common_totals, merges, place_of, ranks_named

SUMMANDS = "one for the whole batch: its gradient is a sum over ranks (--ranks each shows the summands)"
_Values = Mapping[str, Any]


def merged(parts: Parts, whole: Report | None = None) -> Report:
    """The report of all ranks together: the statistics in a row are those of the ranks' tensors, concatenated.

    `whole` is the report of one process on the whole batch, read for its shapes only. A tensor that is as large there
    as on a rank does not grow with the batch; if all ranks agree on it, it counts once. Without `whole`, tensors are
    taken to grow along dimension 0, but not gradients of parameters, and not tensors that differ in no statistic on any
    rank. A shard that several ranks hold counts once. Reports that can't be merged (events, nodes, rows without
    statistics) are those of the first rank.
    """
    first = next(iter(parts.values()))
    if not merges(parts):
        return replace(first, meta=common_meta(parts))
    table = _Table(parts)
    shapes = {place_of(row.values): row["shape"] for row in whole.rows} if whole else {}
    places = zip(table.keys, table.places(), strict=True)
    verdicts = [_verdict(place, shapes.get(key)) for key, place in places]
    stats = table.stats([verdict.merged for verdict in verdicts])
    rows = [Row(each.values, found) for each, found in zip(verdicts, stats, strict=True) if each.values is not None]
    remarks = [
        Skipped(str(key[0]), each.remark, str(key[-1] or ""))
        for key, each in zip(table.keys, verdicts, strict=True)
        if each.remark
    ]
    meta = {key: value for key, value in common_meta(parts).items() if key != "rank"}
    skipped = [*common_skipped(parts), *remarks]
    return replace(first, rows=rows, skipped=skipped, meta=meta, totals=common_totals(first, rows))


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the model: the values that ranks have for it, each with these ranks.

    `alike` and `same`: the ranks' statistics agree but for rounding; or to the last bit, and are not of a constant.
    """

    found: Sequence[tuple[_Values, Sequence[int]]]
    missing: Sequence[int]
    alike: bool
    same: bool


class _Table:
    """The rows of all ranks by place, in the order of the first rank that has it, and an array of their statistics."""

    def __init__(self, parts: Parts) -> None:
        self._ranks = list(parts)
        rows = [MeasuredRows.of(part.rows) for part in parts.values()]
        layouts = _layouts([each.values for each in rows])
        self.keys: dict[tuple[Any, ...], int] = {}
        places = [[self.keys.setdefault(place_of(each), len(self.keys)) for each in values] for values, _ in layouts]
        self._found: list[list[tuple[_Values, Sequence[int]]]] = [[] for _ in self.keys]
        self._figures = np.full((len(rows), len(self.keys), len(STATS_KEYS)), math.nan)
        self._counted = np.zeros((len(rows), len(self.keys)), np.bool_)
        self._hists: dict[tuple[int, int], Histogram | None] = {}
        for (values, positions), own in zip(layouts, places, strict=True):
            for position in positions:
                self._figures[position, own] = rows[position].figures
                self._counted[position, own] = True
                self._hists |= zip(((position, place) for place in own), rows[position].hists, strict=False)
            ranks = [self._ranks[position] for position in positions]
            for place, each in zip(own, values, strict=True):
                self._found[place].append((each, ranks))
                self._count_shard_once(place, each, positions)

    def _count_shard_once(self, place: int, values: _Values, positions: list[int]) -> None:
        """Leave out the copies of a shard that several ranks hold; `sharded` is its place among the shards."""
        if isinstance(shard := values.get("sharded"), list):
            known = any(shard == other.get("sharded") for other, _ in self._found[place][:-1])
            self._counted[positions if known else positions[1:], place] = False

    def places(self) -> Iterator[_Place]:
        """Each place, in the order of `keys`."""
        alike, same = (parts_agree(self._figures, self._counted, tolerance) for tolerance in (ALIKE, 0.0))
        varies = np.nanmax(self._figures[:, :, STATS_KEYS.index("std")], 0, initial=0.0) > 0
        for found, *agree in zip(self._found, alike.tolist(), (same & varies).tolist(), strict=True):
            missing = len(self._ranks) - sum(len(ranks) for _, ranks in found)
            seen = {rank for _, ranks in found for rank in ranks} if missing else ()
            yield _Place(found, [rank for rank in self._ranks if rank not in seen] if missing else [], *agree)

    def stats(self, merged: Sequence[bool]) -> list[TensorStats]:
        """The statistics of each place: of all ranks, `merged`, or of the first that has it."""
        firsts = self._counted.argmax(0).tolist()
        chosen = np.array(merged, np.bool_)
        if self._hists:  # which are lists of any length
            by_place = [np.flatnonzero(self._counted[:, place]).tolist() for place in range(len(merged))]
            parts = [[self._part(position, place) for position in own] for place, own in enumerate(by_place)]
            return [TensorStats.merge(own) if every else own[0] for own, every in zip(parts, merged, strict=True)]
        found = iter(merge_parts(self._figures[:, chosen], self._counted[:, chosen]))
        return [
            next(found) if every else self._part(first, place)
            for place, (first, every) in enumerate(zip(firsts, merged, strict=True))
        ]

    def _part(self, position: int, place: int) -> TensorStats:
        stats = TensorStats.from_floats(self._figures[position, place].tolist())
        return replace(stats, hist=self._hists[position, place]) if self._hists else stats


def _layouts(by_rank: Sequence[Sequence[_Values]]) -> list[tuple[Sequence[_Values], list[int]]]:
    """The values of rows, each with the positions of the ranks that have them: most ranks have the same."""
    found: list[tuple[Sequence[_Values], list[int]]] = []
    for position, values in enumerate(by_rank):
        positions = next((own for known, own in found if known is values or known == values), None)
        if positions is None:
            found.append((values, [position]))
        else:
            positions.append(position)
    return found


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The values of the merged row (None: no row), whether statistics are merged or the first rank's, and a remark."""

    values: _Values | None
    merged: bool
    remark: str = ""


def _verdict(place: _Place, whole: Any) -> _Verdict:
    """How the rows of a place become one. `whole` is the shape in one process with the whole batch, if known.

    Statistics of a sum can't be computed from those of its summands. So there is no row for the gradient of a tensor
    that exists once for the whole batch, such as an embedding of positions: each rank has only a summand of it.
    """
    first, ranks = place.found[0]
    unseen = f"not seen on {ranks_named(place.missing)}" if place.missing else ""
    if first.get("sharded"):
        return _Verdict({key: value for key, value in first.items() if key != "sharded"}, merged=True, remark=unseen)
    if len(place.found) == len(ranks) == 1:
        return _Verdict(first, merged=False, remark=unseen)
    sizes = [(values["shape"], len(own)) for values, own in place.found]
    size, kind = sizes[0][0], first.get("kind")
    copies = whole is None and place.same  # whatever the batch, the ranks computed the same
    grows = whole != size if whole is not None else kind != "parameter" and not copies
    if not grows and all(other == size for other, _ in sizes):
        if kind in ("output", "input") and not copies:
            return _Verdict(None, merged=False, remark=SUMMANDS)
        if place.alike:
            return _Verdict(first, merged=False, remark=unseen)
        return _together(place, "does not grow with the batch, and differs between ranks")
    if not (whole and math.prod(whole) == sum(math.prod(shape) * number for shape, number in sizes)):
        whole = _concatenated(sizes)
    if whole is not None:
        return _Verdict({**first, "shape": whole}, merged=True, remark=unseen)
    said = ", ".join(f"{shape(values['shape'])} on {ranks_named(own)}" for values, own in place.found)
    return _together(place, f"the ranks' shapes do not go together: {said}")


def _together(place: _Place, remark: str) -> _Verdict:
    """A row with the merged statistics of tensors that are not parts of one."""
    shapes = [values["shape"] for values, ranks in place.found for _ in ranks]
    return _Verdict({**place.found[0][0], "shape": shapes}, merged=True, remark=remark)


def _concatenated(sizes: Sequence[tuple[Sequence[int], int]]) -> list[int] | None:
    """The shape of these numbers of tensors concatenated along dimension 0; None if they do not fit.

    Single numbers, such as a loss that a module returns, stay what they are.
    """
    size = sizes[0][0]
    if any(list(other[1:]) != list(size[1:]) or bool(other) != bool(size) for other, _ in sizes):
        return None
    return [sum(other[0] * number for other, number in sizes), *size[1:]] if size else []

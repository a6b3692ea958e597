"""Reports of several ranks as one, merged exactly and as arrays: 1,000 ranks of 1,000 rows take a second or two."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from hookcli.table import Reason, Report, Row, Skipped
from hookcli.table.columns import IDENTITY, place_of
from hookcli.table.formatting import shape
from hookcli.table.merge import ruled, rules_of
from hookcli.table.meta import without
from hookcli.table.rank_table import LAYOUT, Of, PlaceOnRanks, RankTable, Values
from hookcli.table.ranks import Parts, common_meta, common_skipped, common_totals, merges, ranks_named, rows_by_place

SUMMANDS = "one for the whole batch: its gradient is a sum over ranks (--ranks each shows the summands)"
SUMMED = "ranks hold summands of it: its figures are unknown (--ranks each shows the summands)"


def merged(parts: Parts, whole: Report | None = None) -> Report:
    """The report of all ranks together: the statistics in a row are taken over the ranks' tensors, concatenated.

    `whole` is the report of one process on the whole batch, read for its shapes only. A tensor that is as large there
    as on a rank does not grow with the batch; if all ranks agree on it, it counts once. Without `whole`, tensors are
    taken to grow along dimension 0, but not gradients of parameters, and not tensors that differ in no statistic on any
    rank. A shard that several ranks hold counts once, and so does a tensor that is the same on ranks over which tensor
    parallel spreads the model. Reports that can't be merged (events, nodes, rows without statistics) are taken from the
    first rank.
    """
    first = next(iter(parts.values()))
    if not merges(parts):
        return replace(first, meta=common_meta(parts))
    table = RankTable(parts)
    shapes = {place_of(row.values): row["shape"] for row in whole.rows} if whole else {}
    verdicts = [_verdict(place, shapes.get(key)) for key, place in zip(table.keys, table.places(), strict=True)]
    of = [verdict.of for verdict in verdicts]
    stats, rules = table.stats(of), rules_of(first.columns)
    by_place, counted = (rows_by_place(parts), table.counted(of)) if rules else ({}, [[]] * len(of))
    rows, remarks = [], []
    for key, verdict, merged_stats, ranks in zip(table.keys, verdicts, stats, counted, strict=True):
        if verdict.remark:
            place = dict(zip(IDENTITY, key, strict=True))
            remarks.append(Skipped(str(place["fqn"]), verdict.remark, str(place["path"] or ""), verdict.reason))
        if verdict.values is not None:
            row = Row({key: value for key, value in verdict.values.items() if key not in LAYOUT}, merged_stats)
            rows.append(row.having(ruled([by_place[key][rank] for rank in ranks], rules)) if rules else row)
    meta = without(common_meta(parts), "rank", "tensor_parallel")
    skipped = [*common_skipped(parts), *remarks]
    return replace(first, rows=rows, skipped=skipped, meta=meta, totals=common_totals(first, rows))


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The values of the merged row (None: no row), the ranks whose statistics it has, and a remark."""

    values: Values | None
    of: Of
    remark: str = ""
    reason: Reason = Reason.OTHER


def _verdict(place: PlaceOnRanks, whole: Any) -> _Verdict:
    """How the rows of a place become one. `whole` is the shape in one process with the whole batch, if known.

    Statistics of a sum can't be computed from its summands' statistics. So there is no row for the gradient of a tensor
    that exists once for the whole batch, such as an embedding of positions: each rank has only a summand of it.
    """
    first, ranks = place.groups[0]
    size, number = place.sizes[0]
    if first.get("partial"):
        return _Verdict(None, "all", SUMMED, Reason.SUMMED if first.get("kind") == "parameter" else Reason.OTHER)
    if first.get("sharded") and "mesh" not in first:
        return _Verdict(first, "all", place.remark)
    if len(place.groups) == len(ranks) == 1:
        return _Verdict(first, "rank", place.remark)
    if len(place.sizes) == number == 1:
        return _Verdict({**first, "shape": size}, "all", place.remark)
    if all(other == size for other, _ in place.sizes) and (verdict := _of_one_size(place, whole)):
        return verdict
    if not (whole and math.prod(whole) == place.numel):
        whole = place.concatenated()
    if whole is not None:
        return _Verdict({**first, "shape": whole}, "all", place.remark)
    shapes = ", ".join(f"{shape(values['shape'])} on {ranks_named(own)}" for values, own in place.groups)
    return _together(place, f"the ranks' shapes do not go together: {shapes}")


def _of_one_size(place: PlaceOnRanks, whole: Any) -> _Verdict | None:
    """The row of a tensor that does not grow with the batch; None for one that does."""
    first = place.groups[0][0]
    kind = first.get("kind")
    if whole is None and kind != "parameter":
        # whatever the batch, the ranks computed the same
        return _Verdict(first, "unit" if place.units else "rank", place.remark) if place.same else None
    if whole not in (None, place.sizes[0][0]):
        return None
    if kind in ("output", "input"):
        return _Verdict(None, "all", SUMMANDS)
    if place.alike:
        return _Verdict(first, "rank", place.remark)
    return _together(place, "does not grow with the batch, and differs between ranks")


def _together(place: PlaceOnRanks, remark: str) -> _Verdict:
    """A row with the merged statistics of tensors that are not parts of one."""
    shapes = [values["shape"] for values, ranks in place.groups for _ in ranks]
    return _Verdict({**place.groups[0][0], "shape": shapes}, "all", remark)

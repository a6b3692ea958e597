"""Reports of several ranks as one: merged exactly, or with the ranks' rows next to each other. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from hookcli.report import Column, Report, Row, Skipped, TensorStats
from hookcli.report.formatting import number, shape

Parts = Mapping[int, Report]
"""Reports by rank."""
_PLACE = ("fqn", "hook", "step", "bucket", "kind", "call", "pass", "path")
# A rank's share of a batch deviates if its root mean square is this many times the other ranks', or more.
_DEVIATES = 2.0
# Values that should be equal on all ranks may differ by rounding.
_ALIKE = 1e-6


def merged(parts: Parts, whole: Report | None = None) -> Report:
    """The report of all ranks together: the statistics in a row are those of the ranks' tensors, concatenated.

    `whole` is the report of one process on the whole batch, read for its shapes only. A tensor that is as large there
    as on a rank does not grow with the batch; if all ranks agree on it, it counts once. Without `whole`, tensors are
    taken to grow along dimension 0, and gradients of parameters not at all. Reports that can't be merged (events,
    nodes, rows without statistics) are those of the first rank.
    """
    first = next(iter(parts.values()))
    if not merges(parts):
        return replace(first, meta=_meta(parts))
    shapes = {_place(row): row["shape"] for row in whole.rows} if whole else {}
    rows: list[Row] = []
    remarks: list[Skipped] = []
    for place, found in _by_place(parts).items():
        row, remark = _one(found, shapes.get(place))
        missing = [rank for rank in parts if rank not in found]
        remark = remark or (f"not seen on {ranks_named(missing)}" if missing else "")
        rows += [row] if row else []
        remarks += [Skipped(str(place[0]), remark, str(place[-1] or ""))] if remark else []
    if not whole and any(row.get("kind") != "parameter" for row in rows):
        remarks.append(Skipped("", "the shapes of the whole batch: dimension 0 is taken for the batch everywhere"))
    meta = {key: value for key, value in _meta(parts).items() if key != "rank"}
    return replace(first, rows=rows, skipped=[*_skipped(parts), *remarks], meta=meta, totals=_totals(first, rows))


def beside(parts: Parts) -> Report:
    """The rows of these ranks next to each other, each with its `rank` and how it `deviates` from the others."""
    first = next(iter(parts.values()))
    if first.grouping in ("nested", "steps"):
        rows = [row for found in _by_place(parts).values() for row in _compared(found)]
    else:
        rows = [_of(rank, row) for rank, part in parts.items() for row in part.rows]
    return replace(
        first,
        columns=columns_beside(first.columns),
        rows=rows,
        skipped=_skipped(parts),
        meta=_meta(parts) | {"rank": list(parts)},
        totals={} if first.grouping == "steps" else _totals(first, rows),
    )


def columns_beside(columns: Sequence[Column]) -> list[Column]:
    """The columns of a report with the ranks' rows next to each other."""
    return [*columns[:1], Column("rank", "Rank"), *columns[1:], Column("deviates", "Deviates")]


def merges(parts: Parts) -> bool:
    """True for reports of tensors of which several ranks have parts."""
    return all(p.grouping == "nested" and all(row.stats for row in p.rows) for p in parts.values())


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in _PLACE)


def _by_place(parts: Parts) -> dict[tuple[Any, ...], dict[int, Row]]:
    """The rows of each place by rank, in the order of the first rank that has it."""
    found: dict[tuple[Any, ...], dict[int, Row]] = {}
    for rank, part in parts.items():
        for row in part.rows:
            found.setdefault(_place(row), {})[rank] = row
    return found


def _one(found: Mapping[int, Row], whole: Any) -> tuple[Row | None, str]:
    """The row of all ranks, and a remark on it.

    Statistics of a sum can't be computed from those of its summands. So there is no row for the gradient of a tensor
    that exists once for the whole batch, such as an embedding of positions: each rank has only a summand of it.
    """
    rows = list(found.values())
    first = rows[0]
    stats = [row.stats for row in rows if row.stats]
    if len(rows) == 1 and not first.get("sharded"):
        return first, ""
    if first.get("sharded"):
        return Row({k: v for k, v in first.values.items() if k != "sharded"}, TensorStats.merge(stats)), ""
    shapes = [row["shape"] for row in rows]
    same = all(each == shapes[0] for each in shapes)
    grows = first.get("kind") != "parameter" if whole is None else whole != shapes[0]
    if same and not grows and first.get("kind") in ("output", "input"):
        return None, "one for the whole batch: its gradient is a sum over ranks (--ranks each shows the summands)"
    if same and not grows:
        if all(alike(stats[0], other) for other in stats[1:]):
            return first, ""
        return _together(first, stats, shapes), "does not grow with the batch, and each rank has another"
    size = whole if whole and _numel(whole) == sum(map(_numel, shapes)) else _concatenated(shapes)
    if size is None:
        said = ", ".join(f"{shape(each)} on rank {rank}" for rank, each in zip(found, shapes, strict=True))
        return _together(first, stats, shapes), f"the ranks' shapes do not go together: {said}"
    return Row({**first.values, "shape": size}, TensorStats.merge(stats)), ""


def _together(row: Row, stats: Sequence[TensorStats], shapes: Any) -> Row:
    """A row with the merged statistics of tensors that are not parts of one."""
    return Row({**row.values, "shape": shapes}, TensorStats.merge(stats))


def _numel(sizes: Sequence[int]) -> int:
    return math.prod(sizes)


def _concatenated(shapes: Sequence[Sequence[int]]) -> list[int] | None:
    """The shape of tensors concatenated along dimension 0; None if they do not fit."""
    if any(not each or list(each[1:]) != list(shapes[0][1:]) for each in shapes):
        return None
    return [sum(each[0] for each in shapes), *shapes[0][1:]]


def alike(a: TensorStats, b: TensorStats) -> bool:
    """True if two ranks agree but for rounding."""
    return (a.numel, a.nan, a.inf) == (b.numel, b.nan, b.inf) and all(
        x == y or (math.isnan(x) and math.isnan(y)) or abs(x - y) <= _ALIKE * _scale(a, b)
        for x, y in ((a.mean, b.mean), (a.std, b.std), (a.min, b.min), (a.max, b.max))
    )


def _scale(*stats: TensorStats) -> float:
    """The largest magnitude, to which rounding is relative."""
    return max((max(abs(s.min), abs(s.max)) for s in stats if s.finite), default=0.0)


def _compared(found: Mapping[int, Row]) -> Iterator[Row]:
    for rank, row in found.items():
        others = [other for r, other in found.items() if r != rank]
        yield _of(rank, row, _deviation(row, others))


def _of(rank: int, row: Row, deviates: str = "") -> Row:
    return Row({**row.values, "rank": rank, "deviates": deviates or None}, row.stats)


def _deviation(row: Row, others: Sequence[Row]) -> str:
    """The difference of a rank's row from the other ranks' rows, in words; "" if there is none."""
    stats = [other.stats for other in others if other.stats]
    if not (row.stats and stats):
        return ""
    for name, count in (("NaN", "nan"), ("Inf", "inf")):
        if _has(row, count) and not any(_has(other, count) for other in others):
            return f"{name} here alone"
    if row.get("sharded"):  # different pieces of one tensor
        return "a shard"
    if all(other.get("shape") != row.get("shape") for other in others):
        return f"shape {shape(row['shape'])}"
    sizes = [other.rms for other in stats if other.finite]
    if not (row.stats.finite and sizes):
        return ""
    own = row.stats.rms
    usual = median([own, *sizes]) if sizes[1:] else sizes[0]
    if usual == own or (usual and 1 / _DEVIATES <= own / usual <= _DEVIATES):
        return ""
    return f"{number(own / usual)} times the others" if usual else "the others are zero"


def _has(row: Row, count: str) -> bool:
    """True if there are any, also in the gradients that a communication hook received."""
    return bool((row.stats and getattr(row.stats, count)) or row.get(f"before_{count}"))


def _meta(parts: Parts) -> dict[str, Any]:
    """The meta of the first rank, with the time of the slowest; a loss is the sum over all shares."""
    metas = [part.meta for part in parts.values()]
    meta = {**metas[0], "complete": all(m.get("complete", True) for m in metas)}
    if "seconds" in meta:
        meta["seconds"] = max(m["seconds"] for m in metas)
    if meta.get("loss_value") is not None:
        meta["loss_value"] = math.fsum(m["loss_value"] for m in metas)
    return meta


def _skipped(parts: Parts) -> list[Skipped]:
    """Items that no rank measured, and items that some ranks did not, with the ranks' numbers."""
    by_item: dict[Skipped, list[int]] = {}
    for rank, part in parts.items():
        for item in part.skipped:
            by_item.setdefault(item, []).append(rank)
    return [
        item if len(ranks) == len(parts) else replace(item, reason=f"{item.reason} ({ranks_named(ranks)})")
        for item, ranks in by_item.items()
    ]


def ranks_named(numbers: Sequence[int]) -> str:
    """rank 1; ranks 0, 2."""
    return f"rank{'s' if numbers[1:] else ''} {', '.join(map(str, numbers))}"


def _totals(first: Report, rows: Sequence[Row]) -> Mapping[str, Any]:
    return {"rows": len(rows)} if first.totals.keys() == {"rows"} else first.totals

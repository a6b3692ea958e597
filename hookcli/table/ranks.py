"""Reports of several ranks: their rows next to each other, and what merging them takes, too. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from hookcli.table import Column, Report, Row, Skipped, columns_named
from hookcli.table.columns import place_of
from hookcli.table.formatting import number, shape
from hookcli.table.measured_rows import MeasuredRows
from hookcli.table.meta import Meta
from hookcli.table.stats import total

Parts = Mapping[int, Report]
"""Reports by rank."""
# A rank's share of a batch deviates if its root mean square is this many times the other ranks', or more.
_DEVIATES = 2.0
# Values that should be equal on all ranks may differ by rounding.
ALIKE = 1e-6

RANK_COLUMNS = columns_named("rank", "deviates")
"""Columns of a report that shows ranks beside each other."""


def beside(parts: Parts) -> Report:
    """The rows of these ranks next to each other, each with its `rank` and how it `deviates` from the others."""
    first = next(iter(parts.values()))
    if first.grouping in ("nested", "steps"):
        rows = [row for row_by_rank in rows_by_place(parts).values() for row in _compared(row_by_rank)]
    else:
        rows = [_of(rank, row) for rank, part in parts.items() for row in part.rows]
    return replace(
        first,
        columns=columns_beside(first.columns),
        rows=rows,
        skipped=common_skipped(parts),
        meta={**common_meta(parts), "rank": list(parts)},
        totals={} if first.grouping == "steps" else common_totals(first, rows),
    )


def columns_beside(columns: Sequence[Column]) -> list[Column]:
    """The columns of a report with the ranks' rows next to each other."""
    return [*columns[:1], RANK_COLUMNS[0], *columns[1:], RANK_COLUMNS[1]]


def merges(parts: Parts) -> bool:
    """True for reports of tensors of which several ranks have parts."""
    return all(
        part.grouping == "nested" and (isinstance(part.rows, MeasuredRows) or all(row.stats for row in part.rows))
        for part in parts.values()
    )


def rows_by_place(parts: Parts) -> dict[tuple[Any, ...], dict[int, Row]]:
    """The rows of each place by rank, in the order of the first rank that has it."""
    places: dict[tuple[Any, ...], dict[int, Row]] = {}
    for rank, part in parts.items():
        for row in part.rows:
            places.setdefault(place_of(row.values), {})[rank] = row
    return places


def _compared(row_by_rank: Mapping[int, Row]) -> Iterator[Row]:
    alone: dict[int, str] = {}
    for what, count in (("Inf", "inf"), ("NaN", "nan")):
        # in gradients, too: those that a communication hook received, or a module's
        names = count, f"before_{count}", f"grad_{count}"
        having = [rank for rank, row in row_by_rank.items() if any(map(row.get, names))]
        if len(having) == 1 < len(row_by_rank):
            alone[having[0]] = f"{what} here alone"
    for rank, row in row_by_rank.items():
        others = [other for r, other in row_by_rank.items() if r != rank]
        yield _of(rank, row, alone.get(rank) or _deviation(row, others))


def _of(rank: int, row: Row, deviates: str = "") -> Row:
    return row.having({"rank": rank, "deviates": deviates or None})


def _deviation(row: Row, others: Sequence[Row]) -> str:
    """The difference of a rank's row from the other ranks' rows, in words; "" if there is none."""
    stats = [other.stats for other in others if other.stats]
    if not (row.stats and stats):
        return ""
    if row.get("sharded"):  # different pieces of one tensor
        return "a shard"
    if all(other.get("shape") != row.get("shape") for other in others):
        return f"shape {shape(row['shape'])}"
    rms, sizes = row.stats.rms, [each.rms for each in stats if each.finite]
    usual = median([rms, *sizes]) if sizes[1:] else max(sizes, default=rms)
    if not row.stats.finite or usual == rms:
        return ""
    if not usual:
        return "the others are zero"
    return "" if 1 / _DEVIATES <= rms / usual <= _DEVIATES else f"{number(rms / usual)} times the others"


def common_meta(parts: Parts) -> Meta:
    """The meta of the first rank, with the time of the slowest; a loss is the sum over all shares."""
    metas = [part.meta for part in parts.values()]
    meta: Meta = {**metas[0], "complete": all(m.get("complete", True) for m in metas)}
    if "seconds" in meta:
        meta["seconds"] = max(m["seconds"] for m in metas)
    if "loss_value" in meta:
        meta["loss_value"] = sum_of_losses(metas)
    return meta


def sum_of_losses(metas: Sequence[Meta]) -> float | None:
    """The sum of the ranks' losses; None if one of them has none."""
    losses = [loss for meta in metas if (loss := meta.get("loss_value")) is not None]
    return total(losses) if len(losses) == len(metas) else None


def common_skipped(parts: Parts) -> list[Skipped]:
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


def differing(values: Mapping[int, object]) -> str:
    """The ranks with other values, in words: rank 1 differs from ranks 0, 2; ranks 0, 1 differ. "" if none does."""
    by_value: dict[object, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    most, *others = sorted(by_value.values(), key=len, reverse=True)
    if not others:
        return ""
    if len(most) == len(others[0]):  # nobody knows which of them is right
        return f"{ranks_named(list(values))} differ"
    alone = sorted(rank for ranks in others for rank in ranks)
    return f"{ranks_named(alone)} differ{'s' * (len(alone) == 1)} from {ranks_named(most)}"


def common_totals(first: Report, rows: Sequence[Row]) -> Mapping[str, Any]:
    """The totals of the first rank; a number of rows counts all `rows`."""
    return {"rows": len(rows)} if first.totals.keys() == {"rows"} else first.totals

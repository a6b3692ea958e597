"""The same figures over time of several records, in one report: those of further records have columns of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hookcli.table import Column, Report, Row
from hookcli.table.formatting import letter
from hookcli.table.meta import Meta

_SHARED = ("step", "forward")
Sides = Sequence[Report | None]
"""The reports of one model, of each record in turn; None for a record without it."""


def beside(histories: Sequence[Sequence[Report]], names: Sequence[str]) -> list[Report]:
    """The first record's reports of `over_time`, with the figures of other records for the same model and phase.

    The only models without a namesake belong together. `names` are those of the records.
    """
    first, *others = histories
    found = []
    for report in first:
        partners = [_partner(report, first, theirs) for theirs in others]
        found.append(_joined([report, *partners], names) if any(partners) else report)
    return found


def namesakes(ours: Sequence[str], theirs: Sequence[str]) -> dict[str, str]:
    """The models of another record by those of the first; the only ones without a namesake belong together."""
    lone = [[name for name in own if name not in other] for own, other in ((ours, theirs), (theirs, ours))]
    called = {name: name for name in ours if name in theirs}
    return called | ({lone[0][0]: lone[1][0]} if len(lone[0]) == len(lone[1]) == 1 else {})


def _partner(report: Report, ours: Sequence[Report], theirs: Sequence[Report]) -> Report | None:
    """The other record's report of the same model and phase."""
    pairs = {(other.model, other.meta["mode"]): other for other in theirs}
    lone = [other for key, other in pairs.items() if key not in {(own.model, own.meta["mode"]) for own in ours}]
    only = lone[0] if len(ours) == len(theirs) == len(lone) == 1 else None
    return pairs.get((report.model, report.meta["mode"]), only)


def _joined(sides: Sides, names: Sequence[str]) -> Report:
    given = [side for side in sides if side]
    first = given[0]
    meta: Meta = {**first.meta, "against": {letter(place).lower(): name for place, name in enumerate(names)}}
    losses = [side.meta.get("loss_of_steps", [()])[0] if side else () for side in sides]
    if any(losses):
        meta["loss_of_steps"] = losses
    meta["clock"] = [side.meta.get("clock", [()])[0] if side else () for side in sides]
    rows = list(_rows(sides))
    return replace(
        first,
        model=", ".join(dict.fromkeys(side.model for side in given)),
        columns=list(_columns(sides)),
        rows=rows,
        meta=meta,
        totals={"recorded_steps": len(rows)},
        skipped=(),
    )


def _columns(sides: Sides) -> Iterator[Column]:
    columns = {column.name: column for side in sides if side for column in side.columns}
    for name, column in columns.items():
        yield column
        for place in range(1, len(sides)) if name not in _SHARED else ():
            yield Column(f"{name}_{letter(place).lower()}", f"{column.title} ({letter(place)})", column.unit)


def _rows(sides: Sides) -> Iterator[Row]:
    """A row for each step that any record has."""
    by_key = [{_key(row): row for row in side.rows} if side else {} for side in sides]
    figures = [[column.name for column in side.columns if column.name not in _SHARED] if side else [] for side in sides]
    for key in sorted({key for rows in by_key for key in rows}):
        row = by_key[0].get(key)
        some = next(rows[key] for rows in by_key if key in rows)
        values = dict(row.values) if row else {name: some.values.get(name) for name in _SHARED}
        for place, (rows, names) in enumerate(zip(by_key[1:], figures[1:], strict=True), 1):
            other = rows.get(key)
            values |= {f"{name}_{letter(place).lower()}": other.get(name) if other else None for name in names}
        yield replace(row, values=values) if row else Row(values)


def _key(row: Row) -> tuple[int, int]:
    return row["step"], row["forward"] if row["forward"] is not None else -1

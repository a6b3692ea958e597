"""The same figures over time of two records, in one report: those of the other record have columns of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hookcli.table import Column, Report, Row
from hookcli.table.meta import Meta

OTHER = "_b"
"""Ending of the columns of the other record."""
_SHARED = ("step", "forward")


def beside(ours: Sequence[Report], theirs: Sequence[Report], names: tuple[str, str]) -> list[Report]:
    """The reports of `over_time` with the figures of the other record's for the same model and phase beside them.

    The only models without a namesake belong together. `names` are those of the records.
    """
    pairs = {(report.model, report.meta["mode"]): report for report in theirs}
    lone = [r for r in theirs if (r.model, r.meta["mode"]) not in {(o.model, o.meta["mode"]) for o in ours}]
    found = []
    for report in ours:
        other = pairs.get((report.model, report.meta["mode"]))
        if other is None and len(ours) == len(theirs) == len(lone) == 1:
            other = lone[0]
        found.append(_joined(report, other, names) if other else report)
    return found


def _joined(ours: Report, theirs: Report, names: tuple[str, str]) -> Report:
    model = ours.model if ours.model == theirs.model else f"{ours.model}, {theirs.model}"
    meta: Meta = {**ours.meta, "against": {"a": names[0], "b": names[1]}}
    if "loss_of_steps" in ours.meta and "loss_of_steps" in theirs.meta:
        meta["loss_of_steps"] = [*ours.meta["loss_of_steps"], *theirs.meta["loss_of_steps"]]
    rows = list(_rows(ours, theirs))
    columns = list(_columns(ours, theirs))
    return replace(
        ours, model=model, columns=columns, rows=rows, meta=meta, totals={"recorded_steps": len(rows)}, skipped=()
    )


def _columns(ours: Report, theirs: Report) -> Iterator[Column]:
    known = {column.name: column for column in (*ours.columns, *theirs.columns)}
    for name, column in known.items():
        yield column
        if name not in _SHARED:
            yield Column(f"{name}{OTHER}", f"{column.title} (B)", column.unit)


def _rows(ours: Report, theirs: Report) -> Iterator[Row]:
    """A row for each step that either has."""
    mine, other = ({_key(row): row for row in report.rows} for report in (ours, theirs))
    names = [column.name for column in theirs.columns if column.name not in _SHARED]
    for key in sorted({*mine, *other}):
        row, second = mine.get(key), other.get(key)
        values = dict(row.values) if row else {name: second.values.get(name) for name in _SHARED} if second else {}
        values |= {f"{name}{OTHER}": second.get(name) if second else None for name in names}
        yield replace(row, values=values) if row else Row(values)


def _key(row: Row) -> tuple[int, int]:
    return row["step"], row["forward"] if row["forward"] is not None else -1

"""The rows of a step: one per place, whatever the number of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hookcli.report import Column, Report, Row, Skipped, TensorStats

_CALLS = Column("calls", "Calls")


def merged(report: Report, name: Callable[[str], str]) -> Report:
    """The report with the rows of all calls of a place as one, exactly merged, and with these names.

    Of modules of one name, a wrapper and what it wraps, the inner one has the row, where it was seen.
    """
    calls: dict[tuple[object, ...], list[Row]] = {}
    for row in report.rows:
        calls.setdefault((row.fqn, row.get("kind"), row.get("path")), []).append(row)
    places: dict[tuple[object, ...], list[Row]] = {}
    for (fqn, *rest), rows in calls.items():
        place = (name(str(fqn)), *rest)
        if place not in places or len(places[place][0].fqn) < len(str(fqn)):
            places[place] = rows
    return replace(
        report,
        columns=_columns(report.columns),
        rows=[_one(rows, name) for rows in places.values()],
        totals={},
        skipped=_skipped(report, name),
    )


def _skipped(report: Report, name: Callable[[str], str]) -> list[Skipped]:
    seen = {row.fqn for row in report.rows}
    names = {name(fqn) for fqn in seen}
    kept = [s for s in report.skipped if s.fqn in seen or name(s.fqn) not in names]
    return list(dict.fromkeys(replace(s, fqn=name(s.fqn)) for s in kept))


def _columns(columns: Sequence[Column]) -> list[Column]:
    return [_CALLS if column.name == "call" else column for column in columns if column.name != "pass"]


def _one(rows: Sequence[Row], name: Callable[[str], str]) -> Row:
    """The first call's row, with the statistics of all."""
    kept = {key: value for key, value in rows[0].values.items() if key not in ("call", "pass")}
    stats = TensorStats.merge(row.stats for row in rows if row.stats)
    return Row(kept | {"fqn": name(rows[0].fqn), "calls": len(rows)}, stats if rows[0].stats else None)

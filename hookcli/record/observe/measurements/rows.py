"""Merges the rows of a step: one row per module or tensor, whatever the number of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hookcli.table import Report, Row, Skipped, TensorStats, columns_named


def merge_calls(report: Report, name: Callable[[str], str]) -> Report:
    """The report with the rows of all calls merged exactly, and with fqns as `name` makes them.

    If a wrapper and the module inside get the same name, the row of the inner one stays.
    """
    (calls,) = columns_named("calls")
    by_place: dict[tuple[object, ...], list[Row]] = {}
    for row in report.rows:
        by_place.setdefault((row.fqn, row.get("kind"), row.get("path")), []).append(row)
    named: dict[tuple[object, ...], list[Row]] = {}
    for (fqn, *rest), rows in by_place.items():
        key = (name(str(fqn)), *rest)
        if key not in named or len(named[key][0].fqn) < len(str(fqn)):
            named[key] = rows
    return replace(
        report,
        columns=[calls if column.name == "call" else column for column in report.columns if column.name != "pass"],
        rows=[_merged(rows, name) for rows in named.values()],
        totals={},
        skipped=_skipped(report, name),
    )


def _skipped(report: Report, name: Callable[[str], str]) -> list[Skipped]:
    seen = {row.fqn for row in report.rows}
    names = {name(fqn) for fqn in seen}
    kept = [s for s in report.skipped if s.fqn in seen or name(s.fqn) not in names]
    return list(dict.fromkeys(replace(s, fqn=name(s.fqn)) for s in kept))


def _merged(rows: Sequence[Row], name: Callable[[str], str]) -> Row:
    """The first call's row, with the statistics of all calls."""
    kept = {key: value for key, value in rows[0].values.items() if key not in ("call", "pass")}
    stats = TensorStats.merge(row.stats for row in rows if row.stats)
    return Row(kept | {"fqn": name(rows[0].fqn), "calls": len(rows)}, stats if rows[0].stats else None)

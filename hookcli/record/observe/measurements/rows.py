"""Merges the rows of a step: one row per module or tensor, whatever the number of calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hookcli.table import Column, Report, Row, TensorStats

_CALLS = Column("calls", "Calls")


def merge_calls(report: Report, name: Callable[[str], str]) -> Report:
    """The report with the rows of all calls merged exactly, and with fqns as `name` makes them.

    If a wrapper and the module inside get the same name, the row of the inner one stays.
    """
    calls: dict[tuple[object, ...], list[Row]] = {}
    for row in report.rows:
        calls.setdefault((row.fqn, row.get("kind"), row.get("path")), []).append(row)
    named: dict[tuple[object, ...], list[Row]] = {}
    for (fqn, *rest), rows in calls.items():
        key = (name(str(fqn)), *rest)
        if key not in named or len(named[key][0].fqn) < len(str(fqn)):
            named[key] = rows
    merged = []
    for rows in named.values():  # the first call's values, with the statistics of all calls
        values = {key: value for key, value in rows[0].values.items() if key not in ("call", "pass")}
        stats = TensorStats.merge(row.stats for row in rows if row.stats) if rows[0].stats else None
        merged.append(Row(values | {"fqn": name(rows[0].fqn), "calls": len(rows)}, stats))
    seen = {row.fqn for row in report.rows}
    names = {name(fqn) for fqn in seen}
    skipped = [replace(s, fqn=name(s.fqn)) for s in report.skipped if s.fqn in seen or name(s.fqn) not in names]
    columns = [_CALLS if column.name == "call" else column for column in report.columns if column.name != "pass"]
    return replace(report, columns=columns, rows=merged, totals={}, skipped=list(dict.fromkeys(skipped)))

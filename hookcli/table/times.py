"""Times of calls: the columns that `--time` adds to a report, and how they merge. Free of torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hookcli.table.columns import names
from hookcli.table.columns.costs import TIMES
from hookcli.table.meta import with_notes
from hookcli.table.report import Report, Skipped
from hookcli.table.row import Row

CallKey = tuple[str, int]
"""A call of a module or operator: its fqn, and the number of the call."""
Times = Mapping[CallKey, Mapping[str, float]]
"""Microseconds by call and column; a column is absent where the call was not timed in that direction."""

INCLUSIVE = {"forward_us": "forward_self_us", "backward_us": "backward_self_us"}
"""Columns of inclusive times, each with the column of the same time without parts."""
NAMES = names(TIMES)
SIDES = ("a_", "b_")
"""Prefixes of the columns that hold the times of one side of a comparison."""
RATIO = "slowdown"
"""The column with the ratio of both sides' inclusive times."""


def with_times(report: Report, times: Times, note: str = "") -> Report:
    """The report with the times of each call on the first of its rows, and the model's in the totals.

    The first row of a module's parameters has the times of all calls of that module. Times of backward are there only
    if a backward pass was timed.
    """
    names = [name for name in NAMES if any(name in call_times for call_times in times.values())]
    untaken = {**times, **by_module(times)}
    rows, untimed = [], list[Skipped]()
    seen = set[Any]()
    for row in report.rows:
        key = _key(row)
        call_times = untaken.pop(key, {})
        if not call_times and key not in times and key not in seen and row.get("kind") is None:
            untimed.append(Skipped(row.fqn, "not timed: not called in the timed passes"))
        seen.add(key)
        rows.append(replace(row, values={**row.values, **{name: call_times.get(name) for name in names}}))
    return replace(
        report,
        rows=rows,
        columns=(*report.columns, *(column for column in TIMES if column.name in names)),
        totals={**report.totals, **whole(times)},
        skipped=[*report.skipped, *(dict.fromkeys(untimed) if times else ())],
        meta=with_notes(report.meta, *filter(None, [note])),
    )


def _key(row: Row) -> CallKey | str | None:
    """The call that a row is of; for a parameter the name of its module; None for a row of a further pass."""
    if row.get("pass"):
        return None
    if row.get("kind") == "parameter":
        return row.fqn.rpartition(".")[0]
    return row.fqn, row.get("call") or 0


def by_module(times: Times) -> dict[Any, Mapping[str, float]]:
    """The times of all calls of each module."""
    totals: dict[Any, dict[str, float]] = {}
    for (fqn, _), call in times.items():
        so_far = totals.setdefault(fqn, {})
        for name, value in call.items():
            so_far[name] = so_far.get(name, 0.0) + value
    return {**totals}


def whole(times: Times) -> dict[str, float]:
    """The inclusive times of all calls of the model itself."""
    of_model = by_module(times).get("", {})
    return {name: of_model[name] for name in INCLUSIVE if name in of_model}


def remaining_times(rows: Sequence[Row], merged: Mapping[str, Any]) -> dict[str, float | None]:
    """The times of a merged row that are not the sums of its rows' times.

    Parameters of several modules have no row that includes all of them: theirs are the sums of the modules' own times.
    """
    if RATIO in merged:
        return {RATIO: ratio(*({name: merged.get(side + name) for name in INCLUSIVE} for side in SIDES))}
    if rows[0].get("kind") != "parameter" or len({row.fqn for row in rows}) == 1:
        return {}
    return {name: _sum(row.get(own) for row in rows) for name, own in INCLUSIVE.items() if name in merged}


def ratio(a: Mapping[str, float | None], b: Mapping[str, float | None]) -> float | None:
    """B's inclusive times divided by A's, in the directions that both have; None if there are none."""
    pairs = [(a.get(name), b.get(name)) for name in INCLUSIVE]
    in_both = [(before, after) for before, after in pairs if before is not None and after is not None]
    whole = sum(before for before, _ in in_both)
    return sum(after for _, after in in_both) / whole if whole else None


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None

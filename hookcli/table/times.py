"""Times of calls: the columns that `--time` adds to a report, how they merge, and two runs' times side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hookcli.table.columns import names
from hookcli.table.columns.costs import SIDE_TIMES, TIMES
from hookcli.table.formatting import duration, listed
from hookcli.table.meta import with_notes
from hookcli.table.names import in_words
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
        rows.append(row.having({name: call_times.get(name) for name in names}))
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


_MUCH = 1.2  # times A's own time; less is noise
_MATTERS = 0.02  # of the model's time in A


def with_both_times(report: Report, a: Times, b: Times, in_b: Mapping[str, str], note: str = "") -> Report:
    """A comparison with the times of both runs on the first row of each call, and the largest slowdowns in a sentence.

    `in_b` has B's names of A's modules and operators.
    """
    there = {(fqn, call): (in_b[fqn], call) for fqn, call in a if fqn in in_b}
    rows, taken = [], set[CallKey]()
    for row in report.rows:
        place = (row.fqn, row.get("call") or 0)
        own: tuple[Mapping[str, float], Mapping[str, float]] = {}, {}
        if row.get("kind") in (None, "output") and place not in taken:
            taken.add(place)
            own = a.get(place, {}), b.get(there.get(place, place), {}) if place in there or place not in a else {}
        rows.append(row.having(_figures(*own)))
    columns = [c for c in SIDE_TIMES if any(row.get(c.name) is not None for row in rows)]
    pairs: list[_Pair] = [(place, a[place], b.get(other, {})) for place, other in there.items()]
    pairs += [(place, None, call_times) for place, call_times in b.items() if place not in {*there.values()}]
    return replace(
        report,
        rows=rows,
        columns=[*report.columns, *columns],
        totals={**report.totals, "times": _sentence(whole(a), whole(b), pairs)},
        meta=with_notes(report.meta, *filter(None, [note])),
    )


def _figures(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float | None]:
    """Both sides' times of a call, and their ratio."""
    values = {side + name: own.get(name) for name in NAMES for side, own in zip(SIDES, (a, b), strict=True)}
    return {**values, RATIO: ratio(a, b)}


_Pair = tuple[CallKey, Mapping[str, float] | None, Mapping[str, float]]
"""A call with its times on both sides: none in A for one that only B has."""


def _sentence(a: Mapping[str, float], b: Mapping[str, float], pairs: Sequence[_Pair]) -> str:
    """The whole times of both runs, and the calls whose own time is longer in B."""
    models = [_change(name, a[name], b[name]) for name in INCLUSIVE if name in a and name in b]
    slower = sorted(_slower(pairs, a), reverse=True)
    named = f"slower in B: {listed([text for _, text in slower], 3)}"
    return "; ".join([", ".join(models), named if slower else "no part is much slower in B"]) if models else ""


def _slower(pairs: Sequence[_Pair], model: Mapping[str, float]) -> Iterator[tuple[float, str]]:
    """Yield, for each call that is much slower in B, the microseconds that it adds by itself, and a text."""
    for (fqn, call), a, b in pairs:
        for name, own in INCLUSIVE.items():
            before, after = a.get(own) if a is not None else 0.0, b.get(own)
            if before is None or after is None or name not in model:
                continue
            if after > _MUCH * before and after - before > _MATTERS * model[name]:
                place = in_words(fqn) + (f" (call {call})" if call else "")
                added = f"(only in B) {name.removesuffix('_us')} {duration(after / 1e6)}"
                yield after - before, f"{place} {added if a is None else _change(name, before, after)}"


def _change(name: str, before: float, after: float) -> str:
    """Forward 1 ms → 2 ms (2.0x)."""
    times = f" ({after / before:.2g}x)" if before else ""
    return f"{name.removesuffix('_us')} {duration(before / 1e6)} → {duration(after / 1e6)}{times}"


def times_of(report: Report) -> Times:
    """The times that a report's rows have, by call."""
    rows: dict[CallKey, Row] = {}
    for row in report.rows:
        if any(row.get(name) is not None for name in NAMES):
            rows.setdefault((row.fqn, row.get("call") or 0), row)
    return {place: {name: row[name] for name in NAMES if row.get(name) is not None} for place, row in rows.items()}

"""Times of two runs side by side, and the calls that take longer in B."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hookcli.table import Report, Row
from hookcli.table.columns.costs import SIDE_TIMES
from hookcli.table.formatting import duration, listed
from hookcli.table.meta import with_notes
from hookcli.table.times import INCLUSIVE, NAMES, RATIO, SIDES, CallKey, Times, ratio, whole

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
        is_first = row.get("kind") in (None, "output") and place not in taken
        taken |= {place} if is_first else set()
        own = (a.get(place, {}), b.get(there.get(place, place), {}) if place in there or place not in a else {})
        rows.append(replace(row, values={**row.values, **_figures(*(own if is_first else ({}, {})))}))
    columns = [c for c in SIDE_TIMES if any(row.get(c.name) is not None for row in rows)]
    pairs = [_Pair(*place, a[place], b.get(other, {})) for place, other in there.items()]
    pairs += [_Pair(*place, None, own) for place, own in b.items() if place not in {*there.values()}]
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


@dataclass(frozen=True, slots=True)
class _Pair:
    """A call with its times on both sides; `a` is None for one that only B has."""

    fqn: str
    call: int
    a: Mapping[str, float] | None
    b: Mapping[str, float]


def _sentence(a: Mapping[str, float], b: Mapping[str, float], pairs: Sequence[_Pair]) -> str:
    """The whole times of both runs, and the calls whose own time is longer in B."""
    models = [_change(name, a[name], b[name]) for name in INCLUSIVE if name in a and name in b]
    slower = sorted(_slower(pairs, a), reverse=True)
    named = f"slower in B: {listed([text for _, text in slower], 3)}"
    return "; ".join([", ".join(models), named if slower else "no part is much slower in B"]) if models else ""


def _slower(pairs: Sequence[_Pair], model: Mapping[str, float]) -> Iterator[tuple[float, str]]:
    """Yield, for each call that is much slower in B, the microseconds that it adds by itself, and a text."""
    for pair in pairs:
        for name, own in INCLUSIVE.items():
            before, after = pair.a.get(own) if pair.a is not None else 0.0, pair.b.get(own)
            if before is None or after is None or name not in model:
                continue
            if after > _MUCH * before and after - before > _MATTERS * model[name]:
                place = f"{pair.fqn or '(model)'}" + (f" (call {pair.call})" if pair.call else "")
                added = f"(only in B) {name.removesuffix('_us')} {duration(after / 1e6)}"
                yield after - before, f"{place} {added if pair.a is None else _change(name, before, after)}"


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

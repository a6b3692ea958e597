"""A comparison of two reports, row by row: the same probe's view of two runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookcli.diff import verdict
from hookcli.diff.align import Alignment, NamedPart, align
from hookcli.diff.origin import both_sources, check_pair, operators_of_both, unfit
from hookcli.diff.settings import ERROR
from hookcli.diff.tolerance import Tolerance, excess, gradient_scales, times_allowed
from hookcli.diff.verdict import text_of
from hookcli.errors import UsageError
from hookcli.table import STATS_KEYS, Column, Kind, Report, Row
from hookcli.table.columns import DECLARED, IDENTITY, declared
from hookcli.table.columns.layouts import DIFF
from hookcli.table.formatting import listed, shape
from hookcli.table.meta import with_notes
from hookcli.table.stats import EXACT
from hookcli.table.times import times_of, with_both_times

Key = tuple[Any, ...]
_KEY = tuple(name for name in IDENTITY if name != "fqn")
_IF_FILLED = ("source", *_KEY)  # columns that are there if a row has them


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure in which the two runs differ; `times` its tolerance, so that above 1 it is beyond."""

    figure: str
    a: Any
    b: Any
    times: float

    def __str__(self) -> str:
        text = shape if self.figure.endswith("shape") else text_of
        return f"{self.figure.replace('_', ' ')} {text(self.a)} → {text(self.b)}"


def diff(a: Report, b: Report, tolerance: Tolerance | None = None) -> Report:
    """Compare two reports of one probe. Rows are aligned by name, call, path, kind and pass (`align`).

    Shapes, dtypes, parameter counts, MACs, NaN and Inf are compared exactly, other statistics within the tolerance
    (`hookcli.diff.tolerance.allowance`). A dtype that was asked for in its run is not a difference. Each row shows the
    figure that is furthest off and how many times its tolerance that is; `differs` names the worst figures beyond it.
    Rows that only B has stand where they stand in B. Raises UsageError for reports of different probes, or of a probe
    whose rows are not modules or parameters, and where no figure is in both.
    """
    check_pair(a, b)
    tolerance = tolerance or Tolerance()
    a, b, notes = operators_of_both(a, b)
    figures = _figures(a), _figures(b)
    alone = figures_of_one_side(a, b, figures)
    notes += [f"in {side} alone, so not compared: {listed(titles, 4)}" for side, titles in alone.items()]
    a, b = _known_to(a, b), _known_to(b, a)
    if a.rows and b.rows and not figures[0] & figures[1]:
        raise UsageError("nothing to compare: the two reports have no figure in common (saved with --columns?)")
    alignment = align(_places(a, b), _places(b, a))
    rows = list(_rows(a, b, alignment, tolerance))
    model = a.model if a.model == b.model else f"{a.model} → {b.model}"
    columns = [c for c in DIFF if c.name not in _IF_FILLED or any(row.get(c.name) not in (None, "") for row in rows)]
    skipped = [item for item in a.skipped if item in b.skipped]
    compared = Report("diff", model, columns, rows, with_notes({"of": a.probe}, *notes), skipped=skipped)
    report = verdict.judged(compared, alignment, tolerance, (a.meta, b.meta))
    report = naming_lone(report, alone)
    times = times_of(a), times_of(b)
    return with_both_times(report, *times, alignment.in_b) if all(times) else report


def diff_reports(a: Sequence[Report], b: Sequence[Report], tolerance: Tolerance) -> list[Report]:
    """Compare the reports of two files, pairing reports of the same probe in order.

    Of several reports, those that can't be compared are left out: findings, for example. Raises UsageError if the files
    have no probe in common, or one has more reports of a probe than the other.
    """
    a, b = ([r for r in side if not unfit(r)] or side for side in (a, b))
    kinds = [[report.probe for report in reports] for reports in (a, b)]
    if sorted(kinds[0]) != sorted(kinds[1]):
        holds = (f"{'reports' if probes[1:] else 'a report'} of {', '.join(probes)}" for probes in kinds)
        raise UsageError(f"A holds {', B '.join(holds)}: compare reports of the same command")
    left, right = (sorted(side, key=lambda report: kinds[0].index(report.probe)) for side in (a, b))
    return [diff(*pair, tolerance) for pair in zip(left, right, strict=True)]


_RUN = ("input", "fill", "seed", "mode", "dtype", "device", "torch", "loss", "fastpath")


def unlike(report: Report) -> str:
    """The differences between the runs of two saved reports or dumps, in one line; "" if there are none, or for a live
    comparison.
    """
    if not {"of", "dump"} & {*report.meta}:
        return ""
    a: Mapping[str, object] = report.meta["a"]
    b: Mapping[str, object] = report.meta["b"]
    remarks = [f"{key} {a[key]} → {b[key]}" for key in _RUN if key in a and key in b and a[key] != b[key]]
    remarks += [f"{side} is incomplete" for side, run in zip("ab", (a, b), strict=True) if run.get("complete") is False]
    return f"the runs differ: {', '.join(remarks)}" if remarks else ""


def _known_to(report: Report, other: Report) -> Report:
    """The report without values that the other report's version of hookcli did not measure: no row of it has them."""
    names = {column.name for column in other.columns}.union(*(row.values for row in other.rows))
    unknown = {name for row in report.rows for name in row.values if name not in names} if other.rows else set()
    if not unknown:
        return report
    kept = ({name: value for name, value in row.values.items() if name not in unknown} for row in report.rows)
    return replace(report, rows=[replace(row, values=values) for row, values in zip(report.rows, kept, strict=True)])


def _figures(report: Report) -> set[str]:
    """The names of all that its rows measure."""
    return {name for name in {name for row in report.rows for name in row.flat()} if report.column(name).compared}


def figures_of_one_side(a: Report, b: Report, figures: Sequence[set[str]]) -> dict[str, list[str]]:
    """The titles of the figures that one report alone has, which are not compared, by its side, "A" or "B".

    `figures` are the names of each report's.

    Raises UsageError if both have figures that were measured, and none of these in common.
    """
    measured: list[dict[str, str]] = []
    for report, own in zip((a, b), figures, strict=True):
        columns = [report.column(name) for name in sorted(own)]
        order = {column.name: place for place, column in enumerate(report.columns)}
        columns.sort(key=lambda column: order.get(column.name, len(order)))
        measured.append({column.name: column.title for column in columns if column.kind in (Kind.FIGURE, Kind.SHARE)})
    alone = [
        [title for name, title in side.items() if name not in other]
        for side, other in zip(measured, measured[::-1], strict=True)
    ]
    if all(measured) and not measured[0].keys() & measured[1].keys():
        raise UsageError(f"nothing to compare: A has {listed(alone[0], 4)}, B has {listed(alone[1], 4)}")
    pairs = zip("AB", alone, strict=True) if all(measured) else ()
    return {side: titles for side, titles in pairs if titles}


def naming_lone(report: Report, alone: Mapping[str, Sequence[str]]) -> Report:
    """The comparison, whose verdict names the figures that one side alone has."""
    if not alone:
        return report
    has = ", and ".join(f"{side} alone has {listed(titles, 1)}" for side, titles in alone.items())
    return replace(report, totals={**report.totals, "verdict": f"{report.totals['verdict']}, but {has}"})


def _completed(row: Row, other: Row | None) -> Row:
    """The row with the other's statistics where it lacks some: these do not differ, and allowances ask for them."""
    if other is None or other.stats is None:
        return row
    if row.stats is None:  # its number of elements is not known, and what is stands among its values
        known: dict[str, Any] = {key: row.values[key] for key in STATS_KEYS if key in row.values}
        values = {key: value for key, value in row.values.items() if key not in known}
        return Row(values, replace(other.stats, **known)) if known else row
    taken: dict[str, Any] = {key: getattr(other.stats, key) for key in row.lacking}
    return replace(row, stats=replace(row.stats, **taken)) if taken else row


def _places(report: Report, other: Report) -> list[NamedPart]:
    """Every module in the report, once; one that was not measured has the type that the other report knows."""
    types = {row.fqn: str(row.get("type") or "") for row in report.rows}
    other_types = {row.fqn: str(row.get("type") or "") for row in other.rows}
    types |= {item.fqn: other_types.get(item.fqn, "") for item in report.skipped if item.fqn not in types}
    return [NamedPart(fqn, kind) for fqn, kind in types.items()]


def _rows(a: Report, b: Report, alignment: Alignment, tolerance: Tolerance) -> Iterator[Row]:
    """A's rows in their order, with the rows that only B has between them, where they stand in B."""
    theirs = {_key(row, alignment.in_a.get(row.fqn)): row for row in b.rows}
    ours = {_key(row, row.fqn) for row in a.rows}
    changes = {left.fqn: verdict.change(left, right) for left, right in alignment.pairs}
    order = {key: number for number, key in enumerate(theirs)}
    lone = deque((key, row) for key, row in theirs.items() if key not in ours)

    columns = DECLARED | {column.name: column for column in (*b.columns, *a.columns)}
    runs = (a.meta.get("dtype"), b.meta.get("dtype"))
    measured = [_completed(row, theirs.get(_key(row, row.fqn))) for row in a.rows]
    gradients = ((row["kind"], row.stats.rms) for row in measured if row.stats and row.get("kind"))
    scales = gradient_scales(gradients)

    def lone_before(place: float) -> Iterator[Row]:
        while lone and order[lone[0][0]] < place:
            row = lone.popleft()[1]
            yield _alone(row, a, alignment.in_a.get(row.fqn), "B")

    for row in measured:
        key = _key(row, row.fqn)
        if key in theirs:
            yield from lone_before(order[key])
            limits = tolerance.limits(*_dtypes(row, theirs[key], runs), scale=scales.get(row.get("kind", "")))
            yield _pair(row, _completed(theirs[key], row), changes[row.fqn], columns, runs, limits)
        else:
            yield _alone(row, b, alignment.in_b.get(row.fqn), "A")
    yield from lone_before(math.inf)


def _key(row: Row, fqn: str | None) -> Key:
    """The key by which rows are paired; `fqn` is the name in A, or None for a module that only B has."""
    # A layer's own row, which has no number of a head or an expert, is not the row of number 0.
    name = ("in B", row.fqn) if fqn is None else ("in A", fqn)
    return (*name, *(-1 if DECLARED[key].detail and row.get(key) is None else row.get(key) or 0 for key in _KEY))


def _alone(row: Row, other: Report, name: str | None, where: str) -> Row:
    """A row that one side has. If the other side has the module, as `name`, but did not measure it, that is beyond
    tolerance.
    """
    values = {key: row.get(key) for key in ("fqn", "type", *_IF_FILLED) if row.get(key) is not None}
    if name is None:
        return Row({**values, "change": "removed" if where == "A" else "added"})
    reason = next((item.reason for item in other.skipped if item.fqn == name), None)
    differs = f"measured in {where} only" + (f": {reason}" if reason else "")
    alone = {"only": where, "reason": reason, "differs": differs}
    return Row({**values, **alone, "figure": "measured", "times": math.inf, "beyond": True})


def _pair(
    a: Row, b: Row, changed: str, columns: Mapping[str, Column], runs: tuple[Any, Any], limits: tuple[float, float]
) -> Row:
    # Among infinite differences, new NaN and Inf say most.
    differing = differences(a, b, columns, runs, *limits)
    worst = sorted(differing, key=lambda item: (-item.times, item.figure not in ("nan", "inf")))
    values = {key: a.get(key) for key in ("fqn", "type", *_KEY) if a.get(key) is not None}
    values |= both_sources(a.get("source"), b.get("source"))
    if changed:
        values["change"] = changed
    if worst:
        values |= {"figure": worst[0].figure, "a": worst[0].a, "b": worst[0].b, "times": worst[0].times}
    else:
        values["times"] = 0.0
    beyond = [difference for difference in worst if difference.times > 1]
    if beyond:
        values |= {"differs": listed(beyond, 2), "beyond": True}
    return Row(values)


def _dtypes(a: Row, b: Row, runs: tuple[Any, Any]) -> list[str]:
    return [str(row["dtype"]) for row in (a, b) if row.get("dtype")] or [str(run) for run in runs if run]


def differences(
    a: Row, b: Row, columns: Mapping[str, Column], runs: tuple[Any, Any], rtol: float, atol: float
) -> Iterator[Difference]:
    """All figures in which two rows differ, in the order of their values. `runs` are the dtypes that the runs asked
    for.
    """
    for name, value in a.values.items():
        other, column = b.get(name), columns.get(name) or declared(name)
        if not column.compared or value == other or (name == "dtype" and (value, other) == runs):
            continue
        floats = isinstance(value, float) and isinstance(other, float)  # anything else is compared exactly
        relative = rtol if column.tolerance is None else column.tolerance
        apart = times_allowed(value, other, relative * abs(value) + atol) if floats else math.inf
        yield Difference(name, value, other, apart)
    if a.stats and b.stats:
        for name in STATS_KEYS if a.stats.numel == b.stats.numel else EXACT:
            times = excess(name, a.stats, b.stats, rtol, atol)
            if times:
                yield Difference(name, getattr(a.stats, name), getattr(b.stats, name), times)


def beyond(reports: Sequence[Report]) -> bool:
    """True if a comparison found anything beyond tolerance, or a setting that differs and must not."""
    rows = any(row.get("beyond") for report in reports for row in report.rows)
    return rows or any(finding.severity == ERROR for report in reports for finding in report.findings)

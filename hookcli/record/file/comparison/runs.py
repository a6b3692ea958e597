"""Any number of recorded runs: which has the lowest loss, what they differ in, and their figures over steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError
from hookcli.record.file.comparison.loss_verdict import Losses, TwoLosses, final_losses, losses, lowest, lowest_of
from hookcli.record.file.comparison.run_settings import Settings
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.views.query import Query
from hookcli.system.escaping import shell_path
from hookcli.table import Column, Report, Row
from hookcli.table.columns.recorded import RUNS, RUNS_PROBE
from hookcli.table.formatting import letter
from hookcli.table.losses import LossCourse
from hookcli.table.meta import Meta

_SHARED = ("step", "forward")
T = TypeVar("T")
Sides = Sequence[Report | None]
"""The reports of one model, of each record in turn; None for a record without it."""


def beside(histories: Sequence[Sequence[Report]], names: Sequence[str]) -> list[Report]:
    """The first record's reports of `over_time`, with the figures of other records for the same model and phase.

    The only models without a namesake belong together. `names`: the records' names.
    """
    first, *others = ({(report.model, report.meta["mode"]): report for report in reports} for reports in histories)
    partners = [(theirs, namesakes([*first], [*theirs])) for theirs in others]
    joined = []
    for key, report in first.items():
        sides = [report, *(theirs[called[key]] if key in called else None for theirs, called in partners)]
        joined.append(_joined(sides, names) if any(sides[1:]) else report)
    return joined


def namesakes(ours: Sequence[T], theirs: Sequence[T]) -> dict[T, T]:
    """The models of another record by the models of the first; the only ones without a namesake belong together."""
    lone = [[name for name in these if name not in those] for these, those in ((ours, theirs), (theirs, ours))]
    called = {name: name for name in ours if name in theirs}
    return called | ({lone[0][0]: lone[1][0]} if len(lone[0]) == len(lone[1]) == 1 else {})


def _joined(sides: Sides, names: Sequence[str]) -> Report:
    present = [side for side in sides if side]
    first = present[0]
    meta: Meta = {**first.meta, "against": {letter(place).lower(): name for place, name in enumerate(names)}}
    losses = [side.meta.get("loss_of_steps", [()])[0] if side else () for side in sides]
    if any(losses):
        meta["loss_of_steps"] = losses
    meta["clock"] = [side.meta.get("clock", [()])[0] if side else () for side in sides]
    rows = list(_rows(sides))
    return replace(
        first,
        model=", ".join(dict.fromkeys(side.model for side in present)),
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


_NO_ROW = Row({})


def _rows(sides: Sides) -> Iterator[Row]:
    """A row for each step that any record has."""
    by_key = [{_key(row): row for row in side.rows} if side else {} for side in sides]
    figures = [[column.name for column in side.columns if column.name not in _SHARED] if side else [] for side in sides]
    for key in sorted(set().union(*by_key)):
        some = next(rows[key] for rows in by_key if key in rows)
        row = by_key[0].get(key) or Row({name: some.values.get(name) for name in _SHARED})
        values: dict[str, Any] = {}
        for place, (rows, names) in enumerate(zip(by_key[1:], figures[1:], strict=True), 1):
            other = rows.get(key, _NO_ROW)
            values |= {f"{name}_{letter(place).lower()}": other.get(name) for name in names}
        yield row.having(values)


def _key(row: Row) -> tuple[int, int]:
    forward = row.get("forward")
    return row["step"], -1 if forward is None else forward


_ENDING = ".run.jsonl"


def histories(records: Sequence[Record], query: Query) -> list[Report]:
    """The figures over steps of all records beside each other. Raises UsageError if the first one has none."""
    first, *others = records
    sides = [query.within(first).reports()]
    for record in others:
        sides.append([])
        with suppress(UsageError):  # it has no such figure
            sides[-1] = query.within(record).reports()
    if not any(sides[1:]):
        query.within(others[0]).reports()  # says why
    return beside(sides, [str(record.path) for record in records])


def charted(reports: Sequence[Report], smooth: int | None, x: str) -> list[Report]:
    """The reports with charts of means over so many steps, over steps or time. Raises UsageError without times."""
    if x == "time" and not all(clock for report in reports for clock in report.meta.get("clock", [()])):
        raise UsageError("--x time: a record of an older hookcli has no times; leave it out, or record again")
    return [replace(report, meta={**report.meta, "smooth": smooth or 1, "x": x}) for report in reports]


def runs(records: Sequence[Record], model: str | None = None) -> list[Report]:
    """For each model that was trained, or the one named, a report with a row for each run; its verdict is on losses."""
    first, *others = (record.trained() for record in records)
    reports = []
    for name in first if model is None else [model] * (model in first):
        called = [name, *(namesakes(first, theirs).get(name) for theirs in others)]
        reports.append(_of_model([*zip(records, called, strict=True)]))
    return reports


def _of_model(sides: Sequence[tuple[Record, str | None]]) -> Report:
    of = {letter(place): losses(record, model) if model else {} for place, (record, model) in enumerate(sides)}
    names = _names([record for record, _ in sides])
    steps = [_settings_of(record, model) for record, model in sides]
    first = sides[0][0]
    rows, cause = [], {}
    for place, ((record, model), (run, own), name) in enumerate(zip(sides, of.items(), names, strict=True)):
        unlike = _unlike(first, record, steps[0], steps[place]) if place else ""
        if place and model is None:
            unlike = f"has no model {sides[0][1]}"
        elif unlike and not sides[2:]:  # the second line of all
            cause, unlike = {"settings": f"the runs differ: {unlike}"}, ""
        rows.append(Row({"run": run, "name": name, **_course(own), **_of_run(record, steps[place]), "unlike": unlike}))
    a, b, *more = of.values()
    headlines = {"verdict": lowest(of)} if more else TwoLosses(a, b, *Tolerance().limits("float32")).headlines()
    ends = final_losses(of)
    best = lowest_of(ends)
    other = [*of].index(best) or 1 if best else 1
    meta: Meta = {"next": f"hookcli diff {shell_path(first.path)} {shell_path(sides[other][0].path)}"}
    model = ", ".join(dict.fromkeys(model for _, model in sides if model))
    totals = {"verdict": "no loss is recorded", **{key: text for key, text in {**headlines, **cause}.items() if text}}
    return Report(RUNS_PROBE, model, RUNS, rows, meta, totals, grouping="list")


def _names(records: Sequence[Record]) -> list[str]:
    """The names of records' files, or their paths where two files have one name."""
    short = [Path(record.path).name.removesuffix(_ENDING) for record in records]
    return short if len({*short}) == len(short) else [str(record.path) for record in records]


def _course(own: Losses) -> dict[str, object]:
    """The number of steps, the last and the lowest loss, and those that were not finite."""
    best = min((step for step in own if math.isfinite(own[step])), key=own.__getitem__, default=None)
    return {
        "steps": max(own, default=-1) + 1,
        "loss": own[max(own)] if own else None,
        "best_loss": None if best is None else own[best],
        "best_step": best,
        "loss_fault": LossCourse.of(own).fault(),
    }


def _of_run(record: Record, steps: Mapping[int, RecordedStep]) -> dict[str, object]:
    """The largest learning rate, which a schedule reaches, and the duration of the program."""
    rates = [
        rate for step in steps.values() for r in step.reports for row in r.rows if (rate := row.get("lr")) is not None
    ]
    return {"lr": max(rates, default=None), "seconds": record.end.seconds if record.end else None}


def _settings_of(record: Record, model: str | None) -> dict[int, RecordedStep]:
    """The recorded training steps, with the settings of optimizers alone."""
    entries = [entry for entry in record.entries if entry.key == (model, "train") and record.counts(entry)]
    return {step.step: step for step in record.steps(entries, keep=lambda row: "optimizer" in row)}


def _unlike(a: Record, b: Record, ours: Mapping[int, RecordedStep], theirs: Mapping[int, RecordedStep]) -> str:
    """The settings in which a run differs from the first."""
    settings = Settings(a, b)
    for step in filter(theirs.__contains__, ours):
        settings.see(ours[step], theirs[step])
    return "; ".join(settings.differences())

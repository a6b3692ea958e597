"""Any number of recorded runs: which has the lowest loss, what they differ in, and their figures over steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError
from hookcli.record.file.comparison.against import beside, namesakes
from hookcli.record.file.comparison.loss_verdict import Losses, TwoLosses, losses, lowest
from hookcli.record.file.comparison.run_settings import Settings
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.views.query import Query
from hookcli.system.escaping import shell_path
from hookcli.table import Report, Row
from hookcli.table.columns.recorded import RUNS, RUNS_PROBE
from hookcli.table.formatting import letter
from hookcli.table.losses import LossCourse
from hookcli.table.meta import Meta

_ENDING = ".run.jsonl"


def histories(records: Sequence[Record], query: Query) -> list[Report]:
    """The figures over steps of all records beside each other. Raises UsageError if the first one has none."""
    first, *others = records
    sides = [query.reports(first)]
    for record in others:
        sides.append([])
        with suppress(UsageError):  # it has no such figure
            sides[-1] = query.reports(record)
    if not any(sides[1:]):
        query.reports(others[0])  # says why
    return beside(sides, [str(record.path) for record in records])


def charted(reports: Sequence[Report], smooth: int | None, x: str) -> list[Report]:
    """The reports with charts of means over so many steps, over steps or time. Raises UsageError without times."""
    if x == "time" and not all(clock for report in reports for clock in report.meta.get("clock", [()])):
        raise UsageError("--x time: a record of an older hookcli has no times; leave it out, or record again")
    return [replace(report, meta={**report.meta, "smooth": smooth or 1, "x": x}) for report in reports]


def runs(records: Sequence[Record], model: str | None = None) -> list[Report]:
    """For each model that was trained, or the one named, a report with a row for each run; its verdict is on losses."""
    trained = [[*dict.fromkeys(e.model for e in record.entries if e.phase == "train")] for record in records]
    found = []
    for name in trained[0] if model is None else [model] * (model in trained[0]):
        called = [name, *(namesakes(trained[0], theirs).get(name) for theirs in trained[1:])]
        found.append(_of_model([*zip(records, called, strict=True)]))
    return found


def _of_model(sides: Sequence[tuple[Record, str | None]]) -> Report:
    of = {letter(place): losses(record, model) if model else {} for place, (record, model) in enumerate(sides)}
    names = _names([record for record, _ in sides])
    steps = [_settings_of(record, model) for record, model in sides]
    first = sides[0][0]
    rows = []
    for place, ((record, model), (run, own), name) in enumerate(zip(sides, of.items(), names, strict=True)):
        unlike = _unlike(first, record, steps[0], steps[place]) if place else ""
        if place and model is None:
            unlike = f"has no model {sides[0][1]}"
        rows.append(Row({"run": run, "name": name, **_course(own), **_of_run(record, steps[place]), "unlike": unlike}))
    a, b, *more = of.values()
    verdict = lowest(of) if more else TwoLosses(a, b, *Tolerance().limits("float32")).verdict()
    best = min(of, key=lambda run: _last(of[run]))
    other = [*of].index(best) or 1
    meta: Meta = {"next": f"hookcli diff {shell_path(first.path)} {shell_path(sides[other][0].path)}"}
    model = ", ".join(dict.fromkeys(model for _, model in sides if model))
    return Report(RUNS_PROBE, model, RUNS, rows, meta, {"verdict": verdict or "no loss is recorded"}, grouping="list")


def _last(own: Losses) -> float:
    last = own[max(own)] if own else math.nan
    return last if math.isfinite(last) else math.inf


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

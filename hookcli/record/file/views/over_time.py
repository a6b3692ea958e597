"""The history of one module or parameter over the recorded steps, and every step as reports whose rows name it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from hookcli.errors import UsageError, unknown
from hookcli.record.file.parameter_rows import parameter_rows
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import Header, RecordedStep, StepEntry
from hookcli.record.file.views.overview import overview, probe_reports
from hookcli.record.file.views.verdict import with_script
from hookcli.table import STATS_KEYS, Column, Kind, Report, Row, columns_named
from hookcli.table.columns import IDENTITY, OF_CAPABILITIES
from hookcli.table.columns.recorded import MEASURED, OVER_TIME, STEP_TOTALS, WHEN
from hookcli.table.merge import gathered
from hookcli.table.meta import Meta
from hookcli.table.names import name_filter, no_match
from hookcli.table.times import NAMES


def over_time(steps: Iterable[RecordedStep], fqn: str) -> list[Report]:
    """A report per model and phase, with a row per step of a module or parameter; "" is the model itself.

    Only the model itself has a `loss`, the sum over the step's calls of `backward`. Norms cover all parameters within
    the module; statistics describe the first tensor that it returned. Models without any figure get no report.
    """
    by_model: dict[tuple[str, str], list[Row]] = {}
    clocks: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for step in steps:
        by_model.setdefault((step.model, step.phase), []).append(figures(step, overview(step), fqn))
        clocks.setdefault((step.model, step.phase), []).extend([(step.step, step.at)] if step.at is not None else [])
    return [history(*key, rows, fqn, clocks[key]) for key, rows in by_model.items() if any(map(has_figures, rows))]


def needed(fqn: str) -> Callable[[Mapping[str, Any]], bool]:
    """A test for rows in JSON: whether `over_time` needs them, as the module's own or its parameters'."""

    def keep(row: Mapping[str, Any]) -> bool:
        if "fqn" not in row:  # parameter groups
            return not fqn
        name = str(row["fqn"])
        of_parameter = row.get("kind") == "parameter" or "update" in row
        return bool(name == fqn or (of_parameter and (not fqn or name.startswith(f"{fqn}."))))

    return keep


def of_figure(reports: Iterable[Report], name: str) -> list[Report]:
    """The reports that have this figure, by its name or title, with that figure alone."""
    narrowed = []
    for report in reports:
        chosen = [c for c in report.columns if name in (c.name, *(c.title.lower().replace(" ", mark) for mark in " _"))]
        columns = [*(column for column in report.columns if column.name in ("step", "forward")), *chosen[:1]]
        rows = [Row({column.name: row.get(column.name) for column in columns}) for row in report.rows]
        narrowed += [replace(report, columns=columns, rows=rows)] if chosen else []
    return narrowed


def of_places(steps: Sequence[RecordedStep], name: str, pattern: str) -> list[Report]:
    """A report per model and phase, with a row per step, and a column for each place that matches: its figure `name`.

    `name`: the name or the title of a column of any report, else of a module's figures over time. A parameter also
    matches by its module's name. Raises UsageError if no report has such a figure, or no place that has one matches.
    """
    known = {row.fqn: str(row.get("type") or "") for step in steps for report in step.reports for row in report.rows}
    matches = name_filter(pattern, known)
    if not any(map(matches, known, known.values())):
        raise UsageError(f"--match: {no_match(pattern, known)}")
    rows_by_model: dict[tuple[str, str], list[Row]] = {}
    columns: dict[tuple[str, str], dict[str, Column]] = {}

    def is_asked(row: Row) -> bool:
        owner = row.fqn.rpartition(".")[0] if row.get("kind") in ("parameter", "update") else row.fqn
        return any(matches(fqn, known.get(fqn, "")) for fqn in (row.fqn, owner))

    for step in steps:
        values: dict[str, Any] = {"step": step.step, "forward": step.forward}
        recorded = [(column, row) for column, row in _of_figure(step, name) if is_asked(row)]
        for column, row in recorded or of_modules(step, name, is_asked):
            place = f"{row.fqn or '(model)'} {beside_fqn(row)}".rstrip()
            own = replace(column, name=f"{column.name}[{place}]", title=place, full="", drop=None)
            columns.setdefault((step.model, step.phase), {})[own.name] = own
            values[own.name] = row[column.name]
        rows_by_model.setdefault((step.model, step.phase), []).append(Row(values))
    if not columns:
        figures = dict.fromkeys(c.name for step in steps for report in step.reports for c in figure_columns(report))
        is_known = name in figures or any(name == column.name for column in OVER_TIME)
        absent = f"nothing that matches {pattern!r} has it" if is_known else unknown("figure", name, figures)
        raise UsageError(f"--over-time {name}: {absent}")
    when = columns_named("step", "forward")
    return [
        replace(history(*key, rows_by_model[key], name), columns=(*when, *own.values()), rows=rows_by_model[key])
        for key, own in columns.items()
    ]


def _of_figure(step: RecordedStep, name: str) -> Iterator[tuple[Column, Row]]:
    """The rows that have a figure of this name or title; statistics describe outputs."""
    for report in step.reports:
        for column in figure_columns(report):
            other = column.name in STATS_KEYS and report.probe != "activations"
            if name.lower() in (column.name, column.title.lower()) and not other:
                yield from ((column, row) for row in report.rows if row.get(column.name) is not None)


def of_modules(step: RecordedStep, name: str, is_asked: Callable[[Row], bool]) -> Iterator[tuple[Column, Row]]:
    """The modules asked for that have a figure of this name over all parameters within, which no report has."""
    joined = overview(step)
    for column in (column for column in OVER_TIME if name.lower() in (column.name, column.title.lower())):
        places = dict.fromkeys(row.fqn for row in joined.rows if is_asked(row))
        rows = (figures(step, joined, fqn) for fqn in places)
        yield from ((column, row) for row in rows if row.get(column.name) is not None)


def figure_columns(report: Report) -> list[Column]:
    """The columns of a report whose values are numbers that can change from step to step."""
    charted = [column for column in report.columns if column.charted and not column.identity]
    return [c for c in charted if any(type(row.get(c.name)) in (int, float) for row in report.rows)]


def beside_fqn(row: Row) -> str:
    """Words that tell a row from others of its name: the path of a tensor, "head 3", "update"; "" for the usual one."""
    further = [(name, row.get(name)) for name in IDENTITY if name not in ("fqn", "step")]
    filled = [(name, value) for name, value in further if value not in (None, "", "output", "parameter")]
    return " ".join(str(value) if name in ("path", "kind") else f"{name} {value}" for name, value in filled)


def report_title(model: str, fqn: str) -> str:
    """Net: body.0; Net for the model itself."""
    return f"{model}: {fqn}" if fqn else model


def spoken(phase: str) -> str:
    """The phase in words: "no grad" for "no_grad"."""
    return phase.replace("_", " ")


def has_figures(row: Row) -> bool:
    """True if anything was measured of the module or parameter in that step."""
    return row.stats is not None or any(row.get(column.name) is not None for column in MEASURED)


def history(
    model: str, phase: str, rows: Sequence[Row], fqn: str = "", clock: Sequence[tuple[int, float]] = ()
) -> Report:
    """The history of a model, or of a part of it, from its `figures` in each step: the columns that any row has."""
    meta: Meta = {"mode": spoken(phase)}
    if clock:
        meta["clock"] = [clock]
    always = ("step", "forward")  # the chart reporter needs them
    known = [*OVER_TIME, *_further(rows)]
    columns = [c for c in known if c.name in always or any(row.get(c.name) is not None for row in rows)]
    return Report(
        "over-time", report_title(model, fqn), columns, rows, meta, {"recorded_steps": len(rows)}, grouping="list"
    )


def figures(step: RecordedStep, report: Report, fqn: str = "") -> Row:
    """The figures of a model, or of a module or parameter, in a step, of which `report` is the overview."""
    parameters = parameter_rows(step.reports)
    values: dict[str, object] = {"step": step.step, "forward": step.forward, "seconds": step.seconds}
    values["loss"] = step.loss if not fqn else None
    if fqn in parameters:
        return Row({**values, **parameters[fqn].values})
    within = [row for row in report.rows if not fqn or row.fqn == fqn or row.fqn.startswith(f"{fqn}.")]
    own = next((row for row in within if row.fqn == fqn), None)
    values |= {"fqn": fqn, "output_grad": own.get("output_grad") if own else None, **gathered(within)}
    values |= {name: own.get(name) for name in NAMES} if own and fqn else {}
    values = values if fqn else {**values, **_of_step(report.totals), **of_parts(step)}
    return replace(own, values=values) if own else Row(values)


def _of_step(totals: Mapping[str, Any]) -> dict[str, object]:
    """The model's own figures: each group's learning rate and optimizer's loss, and figures of the whole step."""
    groups = totals.get("groups", ())
    losses = [(group["optimizer"], group["loss"]) for group in groups if group.get("loss") is not None]
    earlier = [[name for name, _ in losses[:number]].count(name) for number, (name, _) in enumerate(losses)]
    return {
        **{f"lr_{number}" if number else "lr": group.get("lr") for number, group in enumerate(groups)},
        **{f"loss_{name}" + f"_{n + 1}" * (n > 0): loss for (name, loss), n in zip(losses, earlier, strict=True)},
        **{column.name: totals[column.name] for column in STEP_TOTALS if column.name in totals},
    }


_OF_PARTS = {column.name: column for columns in OF_CAPABILITIES.values() for column in columns}


def of_parts(step: RecordedStep) -> dict[str, object]:
    """The figures of the whole step that parts of capabilities report in one row, the model's own."""
    alone = [report.rows[0] for report in step.reports if [row.fqn for row in report.rows] == [""]]
    return {name: value for row in alone for name, value in row.values.items() if name in _OF_PARTS}


def _further(rows: Sequence[Row]) -> Iterator[Column]:
    """The losses of optimizers that step in turns, further groups' learning rates that differ from the first's, and
    figures of parts of capabilities.
    """
    names = dict.fromkeys(key for row in rows for key in row.values)
    for name in names:
        if name in _OF_PARTS:
            yield _OF_PARTS[name]
        elif not name.startswith(("loss_", "lr_")):
            continue
        elif name.startswith("loss_"):
            yield Column(name, f"Loss of {name.removeprefix('loss_').replace('_', ' ')}")
        elif any(row.get(name) not in (None, row.get("lr")) for row in rows):
            yield Column(name, f"Learning rate of group {name.removeprefix('lr_')}", kind=Kind.SETTING)


def every_step(record: Record, entries: Iterable[StepEntry], probe: str | None = None) -> Iterator[Report]:
    """Yield the reports of each of these steps: the report of one `probe`; else "step", "run", "optimizer" and "check".

    "step" has one row, the figures of the whole model as `show --over-time .` has them; "run" has a row per module, as
    `show` has it; "optimizer" a row per parameter group; "check" the findings up to it, if there were checks. The meta
    of each report also says what was run.
    """
    run: Meta = about(record.header) if record.header else {}
    for recorded in record.steps(entries):
        verdict = recorded.verdict
        step = recorded.with_verdict(with_script(verdict, record)) if verdict else recorded
        for report in probe_reports(step, probe) if probe else _joined(step):
            yield _dated(replace(report, meta={**run, **report.meta}), step)


def _joined(step: RecordedStep) -> Iterator[Report]:
    joined = overview(step)
    row = figures(step, joined)
    if has_figures(row):
        measured = history(step.model, step.phase, [row]).columns
        columns = (*columns_named("fqn"), *measured, *columns_named("plain_seconds"))
        rows = [row.having({"plain_seconds": step.plain_seconds})]
        yield Report("step", step.model, columns, rows, joined.meta, grouping="list")
    yield joined
    yield from probe_reports(step, "optimizer")
    yield from probe_reports(step, "check")


def _dated(report: Report, step: RecordedStep) -> Report:
    when = {"step": step.step, "phase": step.phase, "forward": step.forward}
    columns = (*WHEN, *(column for column in report.columns if column.name not in when))
    return replace(
        report, columns=columns, rows=[replace(row, values={**when, **row.values, **when}) for row in report.rows]
    )


def about(header: Header) -> Meta:
    """Return what was run, with which versions, and how it was recorded."""
    command = shlex.join(header.argv)
    meta: Meta = {"script": header.name, "command": command, "started": header.started, "every": header.every}
    return {**meta, **cast("Meta", header.versions)}

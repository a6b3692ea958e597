"""The summary of a run on a screen: which models ran, their last recorded steps, and how to see more."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hookcli.checks.base import ERROR
from hookcli.checks.judgement import fails, with_advice
from hookcli.errors import shortened
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import SKIPPED, UNSEARCHED, End, Header, NonFinite, RecordedStep
from hookcli.record.file.views.overview import brief, findings, overview, rows_before, verdict_on
from hookcli.registry import load
from hookcli.system.escaping import shell_path, shell_word, visible, wrapped
from hookcli.table import Report, Row, formatting
from hookcli.table.columns.recorded import RECORDED_MODELS
from hookcli.table.grouping import View
from hookcli.table.losses import LossCourse, faults

_MODELS = 10  # rows in the table of models
_SHOWN = 3  # models whose modules are shown
_ROWS = 14  # rows per model
_SIZES = ((_ROWS, True), (_ROWS, False), (_ROWS // 2, False), (0, False))
"""Rows per model, and whether facts on the step stand below them, the longest summary first."""
_TYPED = 2  # other lines on the screen: the command and the prompt; a remark on a bad value, the exit code of --check
_NEXT = "Next: "
_TAIL = 0.2  # of a run, at its end, in which a step should have been recorded
_MANY = 24  # steps
_ERROR = 100  # characters of an exception's message; the program has shown all of it


def summary(
    header: Header,
    end: End,
    latest: Mapping[tuple[str, str], RecordedStep],
    non_finite: Sequence[NonFinite],
    path: str | Path | None,
    width: int | None,
    color: bool,
    courses: Mapping[str, LossCourse] = MappingProxyType({}),
    checked: bool = False,
    height: int | None = None,
) -> str:
    """The text that ends a run, for a terminal of this `width` and `height` (None: no terminal).

    `latest` is the last recorded step of each model and phase, `courses` the course of each model's loss, if
    known; `path` is the record's path as the user would type it, None if no record was kept. `checked`: `run --check`.
    Of the tables of modules it has what leaves the first line on the screen.
    """
    text = ""
    for rows, facts in _SIZES:
        text = _text(header, end, latest, non_finite, path, width, color, courses, checked, rows, facts)
        if height is None or text.count("\n") + _TYPED + bool(non_finite) + checked <= height:
            break
    return text


def _text(
    header: Header,
    end: End,
    latest: Mapping[tuple[str, str], RecordedStep],
    non_finite: Sequence[NonFinite],
    path: str | Path | None,
    width: int | None,
    color: bool,
    courses: Mapping[str, LossCourse],
    checked: bool,
    size: int,
    facts: bool,
) -> str:
    """The summary with so many rows per model, and with or without the facts on each step."""
    view = View(depth=math.inf, width=width, color=color, bars=width is not None)
    if header.ranks > 1:
        header = replace(header, name=f"{header.name}, rank {header.rank} of {header.ranks}")

    def told(lines: Iterable[str]) -> list[str]:
        return [wrapped(visible(line), width) for line in lines]

    lost = faults(courses)
    bad_line = "".join(map(non_finite_line, non_finite[:1]))
    goes_on = bad_line and end.program_steps > non_finite[0].step  # else the line stands right above
    parts = told([f"hookcli: {text}" for text in (lost or (bad_line if goes_on else ""),) if text])
    parts = [f"\x1b[1;31m{text}\x1b[0m" for text in parts] if color else parts
    parts += told([f"hookcli: {ran_line(header, end, path)}", *compiled_lines(end, places=not checked)])
    if not end.models or path is None:
        return "\n".join([*parts, *told(end.notes or [_nothing(end)]), ""])
    shown = [step for model in _most_recorded(end.models, _SHOWN) for step in _last(model["model"], latest)]
    rows = [_model_row(model, latest, courses) for model in _most_recorded(end.models, _MODELS)]
    parts += ["", _rendered([Report("models", "", RECORDED_MODELS, rows, grouping="list")], view)]
    bad = [one for one in non_finite[:1] if one.reports]
    tables = [report for one in bad for report in rows_before(one)]
    stopped = [(one.model, one.phase, one.step) for one in bad]  # unfinished: the rows before say more than all rows
    whole = (step for step in shown if step.complete or (step.model, step.phase, step.step) not in stopped)
    tables += [brief(step, courses.get(step.model), size, facts=facts) for step in whole if size]
    parts += [_rendered(tables, view)] if tables else []
    others = [step for step in latest.values() if step not in shown]
    verdicts = [report for step in shown for report in findings(step, courses.get(step.model))]
    verdicts += [report for step in others for report in findings(step) if fails([report], ERROR)]
    verdicts += verdict_on(end, header.name) if checked else []
    script = shlex.join(header.argv) if header.name.endswith(".py") and header.argv else "SCRIPT"
    verdicts = [with_advice(report, lambda text: text.replace("SCRIPT", script)) for report in verdicts]
    parts += [_rendered(verdicts, view)] if verdicts else []
    parts += [f"… and {len(end.models) - _MODELS} more models"] if end.models[_MODELS:] else []
    said = not non_finite or non_finite[0].cause in (UNSEARCHED, SKIPPED)
    remarks = [*([bad_line] if lost and not said else []), *_notes(end, others)]
    remarks += [] if lost or header.every else _unrecorded(end, latest)
    remarks += [] if size else [f"all modules and times: hookcli show {shell_path(path)}"]
    remarks += (
        ["--check would make the exit code 1"] if (lost or non_finite) and not checked and not end.exit_code else []
    )
    then = next((note for note in end.notes if note.startswith(_NEXT)), "") or _further(shown, path, non_finite)
    remarks = [line for line in dict.fromkeys([*remarks, *end.notes]) if not line.startswith(_NEXT)]
    return "\n".join([*parts, *told([*remarks, then]), ""])


def fault(record: Record, *, said: bool = False) -> str:
    """A loss of the run that was not finite, else errors that checks found in its last steps; "" if there are none."""
    if lost := faults(record.courses()) or "".join(map(non_finite_line, record.non_finite[:1])):
        return "a value was not finite" if said else lost
    errors = sum(one.fails(ERROR) for step in record.last() for report in findings(step) for one in report.findings)
    if errors:
        return f"{formatting.counted(errors, 'error')} in the last recorded steps"
    found = (one for report in verdict_on(record.end, "") for one in report.findings)
    return next((one.message for one in found if one.fails(ERROR)), "")


def _most_recorded(models: Sequence[Mapping[str, Any]], number: int) -> list[Mapping[str, Any]]:
    """The models with the most recorded steps, in the order of their first forwards."""
    most = sorted(range(len(models)), key=lambda i: -models[i]["recorded_steps"])[:number]
    return [models[i] for i in sorted(most)]


def _last(name: str, latest: Mapping[tuple[str, str], RecordedStep]) -> list[RecordedStep]:
    """The model's last training step; the last step of any phase if it was not trained."""
    steps = [step for (model, _), step in latest.items() if model == name]
    return [step for step in steps if step.phase == "train"] or steps[-1:]


def ran_line(header: Header, end: End | None, path: str | Path | None) -> str:
    """train.py: 300 steps of 2 models in 41.2 s, exit code 0; 8 recorded steps in train.run.jsonl"""
    if end is None:
        return f"{header.name}, started {header.started}: no end is recorded; it is still running, or was killed"
    forwards = sum(model["forwards"] + model["no_grad_forwards"] for model in end.models)
    steps = end.program_steps
    did = formatting.counted(steps, "step") if steps else formatting.counted(forwards, "forward")
    of = f"{did} of {formatting.counted(len(end.models), 'model')} in " if end.models else ""
    hookcli_time = f" ({formatting.clock(end.hookcli_seconds)} of it hookcli's own work)" if end.hookcli_seconds else ""
    code = "" if end.exit_code is None else f"exit code {end.exit_code}"
    error = shortened(end.error, _ERROR) if end.error else ""
    ended = f", {error} ({code})" if error and code else f", {error or code}" if error or code else ""
    kept = f"{_recorded(end)} in {path}" if path else "no record was kept"
    return f"{header.name}: {of}{formatting.clock(end.seconds)}{hookcli_time}{ended}; {kept}"


def compiled_lines(end: End | None, *, places: bool = True) -> list[str]:
    """compiled: 3 graphs, 1 graph break (train.py:31 ...), 14 s of compilation, 31% of the run. None without any."""
    made = end.compilation if end else None
    return [f"compiled: {made.line(end.seconds, places)}"] if made and end else []


def _recorded(end: End) -> str:
    """8 recorded steps and 2 forwards without gradients"""
    steps, forwards = (sum(model.get(f"recorded_{what}", 0) for model in end.models) for what in ("steps", "forwards"))
    unfinished = sum(max(0, model.get("recorded_steps", 0) - model["steps"]) for model in end.models if model["steps"])
    recorded = [formatting.counted(steps, "recorded step")] if steps or not forwards else []
    recorded = [f"{text} ({unfinished} unfinished)" if unfinished else text for text in recorded]
    word = "forward" if recorded else "recorded forward"
    return " and ".join([*recorded, *([f"{formatting.counted(forwards, word)} without gradients"] if forwards else [])])


def left_out_line(end: End) -> str:
    """516 forwards without gradients were left out (Agent.actor); --no-grad N records more. Empty if there are none."""
    models = [model for model in end.models if model.get("left_out")]
    number = sum(model["left_out"] for model in models)
    verb = "were" if number != 1 else "was"
    names = ", ".join(model["model"] for model in models[:_SHOWN]) + (", ..." if models[_SHOWN:] else "")
    left_out = formatting.counted(number, "forward")
    return f"{left_out} without gradients {verb} left out ({names}); --no-grad N records more" if models else ""


def _nothing(end: End) -> str:
    why = f" ({'; '.join(end.notes)})" if end.notes else ""
    if end.others:
        return f"no module with parameters was called{why}; modules without parameters: {_called(end.others)}"
    return f"no module was called{why}"


def _called(others: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in others.items())


def _model_row(
    model: Mapping[str, Any], latest: Mapping[tuple[str, str], RecordedStep], courses: Mapping[str, LossCourse]
) -> Row:
    """A model's steps and forwards, and its loss at the beginning and the end."""
    name = model["model"]
    step = latest.get((name, "train"))
    course = courses.get(name, LossCourse())
    losses = {"first_loss": course.first, "loss": course.last}
    return Row({**model, **losses, "name": name, "seconds": step.plain_seconds if step else None})


def _rendered(reports: Sequence[Report], view: View) -> str:
    return str(load("reporters", "table")().render(reports, view))


def non_finite_line(value: NonFinite) -> str:
    """first non-finite value: 12 NaN in the output of layer1.relu (Net, step 3)"""
    counts = [f"{count:,} {what}" for count, what in ((value.nan, "NaN"), (value.inf, "Inf")) if count]
    phase = "" if value.phase == "train" else f", {value.phase}"
    of_module = f"the {value.what} of {value.fqn}" if value.fqn else f"the model's {value.what}"
    where = "the loss" if value.what == "loss" else of_module
    cause = f"; {value.cause}" if value.cause else ""
    place = f"{value.model}, step {value.step:,}{phase}"
    if value.cause in (UNSEARCHED, SKIPPED):
        return f"the loss is {'NaN' if value.nan else 'Inf'} ({place}); {value.cause}"
    kept = f"; {value.kept}" if value.kept else ""
    return f"first non-finite value: {' and '.join(counts)} in {where} ({place}){cause}{kept}"


def _notes(end: End, steps: Iterable[RecordedStep]) -> list[str]:
    notes = [f"{model['model']}: {note}" for model in end.models for note in model["notes"]]
    notes += [f"{step.model}: {note}" for step in steps for note in step.notes]
    notes += [left_out_line(end), f"called outside any model: {_called(end.others)}" if end.others else ""]
    return list(filter(None, dict.fromkeys(notes)))


def _unrecorded(end: End, latest: Mapping[tuple[str, str], RecordedStep]) -> Iterator[str]:
    """Say which models were recorded last long before the end: their time was spent on the first steps."""
    for model in end.models:
        last, steps = latest.get((model["model"], "train")), model["steps"]
        if last and steps > _MANY and steps - last.step > steps * _TAIL:
            yield f"{model['model']}: the last recorded step is {last.step:,} of {steps - 1:,}; --every N records more"


def _further(shown: Sequence[RecordedStep], path: str | Path, non_finite: Sequence[NonFinite]) -> str:
    """The command that shows more: the page, or what led to the first value that is not finite, where it begins."""
    first = non_finite[0] if non_finite else None
    recorded = {row.fqn for step in shown if first and step.model == first.model for row in overview(step).rows}
    if first and first.fqn in recorded - {""}:
        return f"{_NEXT}hookcli show {shell_path(path)} --over-time {shell_word(first.fqn)}"
    return f"{_NEXT}hookcli {'report' if shown else 'show'} {shell_path(path)}"

"""The summary of a run on a screen: which models ran, their last recorded steps, and how to see more."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hookcli.checks.base import ERROR, WARNING
from hookcli.checks.judgement import fails, with_advice
from hookcli.record.file.ranks.ranked_record import RankedRecord
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import SKIPPED, UNSEARCHED, End, Header, NonFinite, RecordedStep
from hookcli.record.file.views.headlines import Aside, part_fault, wrong_lines
from hookcli.record.file.views.overview import brief, findings, overview, rows_before, verdict_on
from hookcli.record.file.views.run_lines import compiled_lines, left_out_line, non_finite_line, ran_line
from hookcli.registry import load
from hookcli.system.escaping import shell_path, shell_word, visible, wrapped
from hookcli.table import Report, Row, formatting
from hookcli.table.columns.recorded import RECORDED_MODELS
from hookcli.table.grouping import View
from hookcli.table.losses import LossCourse, faults, jumps

_MODELS, _SHOWN = 10, 3  # rows in the table of models; models whose modules are shown
_ROWS = 14  # rows per model
_SIZES = ((_ROWS, True), (_ROWS, False), (_ROWS // 2, False), (0, False))
"""Rows per model, and whether facts on the step stand below them, the longest summary first."""
_TYPED = 2  # other lines on the screen: the command and the prompt; a remark on a bad value, the exit code of --check
_NEXT = "Next: "
_MANY, _TAIL = 24, 0.2  # steps of a run; its share, at the end, in which a step should have been recorded
_BEFORE = 20  # steps before a jump: enough to tell what is usual


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
    record: Record | None = None,
) -> str:
    """The text that ends a run, for a terminal of this `width` and `height` (None: no terminal).

    `latest` is the last recorded step of each model and phase, `courses` the course of each model's loss, if
    known; `path` is the record's path as the user would type it, None if no record was kept. `checked`: `run --check`.
    `record`: what has been written by now, by all ranks, for what one process does not know.
    Of the tables of modules it has what leaves the first line on the screen.
    """
    if isinstance(record, RankedRecord):
        whole = [entry for entry in record.entries if len(record.held(entry)) == record.ranks]
        merged = {(step.model, step.phase): step for step in record.last(whole)}
        latest, courses = {key: merged.get(key, step) for key, step in latest.items()}, record.courses()
    made = _Summary(header, end, latest, non_finite, path, width, color, courses, checked, record)
    fails = checked or bool(record and part_fault(record))
    text = ""
    for rows, facts in _SIZES:
        text = made.text(rows, facts=facts)
        if height is None or text.count("\n") + _TYPED + bool(non_finite) + fails <= height:
            break
    return text


@dataclass(frozen=True)
class _Summary:
    """The arguments of `summary`, and its parts."""

    header: Header
    end: End
    latest: Mapping[tuple[str, str], RecordedStep]
    non_finite: Sequence[NonFinite]
    path: str | Path | None
    width: int | None
    color: bool
    courses: Mapping[str, LossCourse]
    checked: bool
    record: Record | None

    def text(self, size: int, *, facts: bool) -> str:
        """The summary with so many rows per model, and with or without the facts on each step."""
        end, path = self.end, self.path
        if not end.models or path is None:
            return "\n".join([*self._first, *self._told(end.notes or [_nothing(end)]), ""])
        rows = [_model_row(model, self.latest, self.courses) for model in _most_recorded(end.models, _MODELS)]
        parts = [*self._first, "", self._rendered([Report("models", "", RECORDED_MODELS, rows, grouping="list")])]
        bad = next((one for one in self.non_finite[:1] if one.reports), None)
        # the rows before it say more than all
        tables, stopped = ([*rows_before(bad)], (bad.model, bad.phase, bad.step)) if bad else ([], None)
        whole = (s for s in self._shown if s.complete or (s.model, s.phase, s.step) != stopped)
        tables += [brief(step, self.courses.get(step.model), size, facts=facts) for step in whole if size]
        parts += [self._rendered(tables)] if tables else []
        parts += self._verdicts
        parts += [f"… and {len(end.models) - _MODELS} more models"] if end.models[_MODELS:] else []
        return "\n".join([*parts, *self._told(self._remarks(path, size)), ""])

    @cached_property
    def _lost(self) -> str:
        return faults(self.courses)

    @cached_property
    def _whole_courses(self) -> Mapping[str, LossCourse]:
        """The course of each loss, of all ranks."""
        return self.record.courses() if self.record else self.courses

    @cached_property
    def _bad_line(self) -> str:
        return "".join(map(non_finite_line, self.non_finite[:1]))

    @cached_property
    def _first(self) -> list[str]:
        """The lines on what is not finite, or on a loss that jumped, on the run, and on what it compiled."""
        header, end = self.header, self.end
        if header.ranks > 1:
            header = replace(header, name=f"{header.name}, rank {header.rank} of {header.ranks}")
        goes_on = self._bad_line and end.program_steps > self.non_finite[0].step  # else the line stands right above
        wrong = self._lost or (self._bad_line if goes_on else "") or jumps(self._whole_courses)
        found = wrong_lines(self.record, wrong) if self.record else [wrong] * bool(wrong)
        asides = [f"hookcli: {text}" for text in found if isinstance(text, Aside)]
        lines = self._told(f"hookcli: {text}" for text in found if not isinstance(text, Aside))
        lines = [f"\x1b[1;31m{text}\x1b[0m" for text in lines] if self.color else lines
        run = [f"hookcli: {ran_line(header, end, self.path)}", *compiled_lines(end, places=not self.checked)]
        return lines + self._told([*run, *asides])

    @cached_property
    def _shown(self) -> list[RecordedStep]:
        models = _most_recorded(self.end.models, _SHOWN)
        return [step for model in models for step in _last(model["model"], self.latest)]

    @cached_property
    def _others(self) -> list[RecordedStep]:
        return [step for step in self.latest.values() if step not in self._shown]

    @cached_property
    def _verdicts(self) -> list[str]:
        """The findings, rendered, if there are any."""
        ran, courses = {model["model"]: model for model in self.end.models}, self.courses
        shown = (findings(step, courses.get(step.model), ran.get(step.model, {}), self.record) for step in self._shown)
        verdicts = [report for reports in shown for report in reports]
        others = (findings(step, ran=ran.get(step.model, {})) for step in self._others)
        verdicts += [report for reports in others for report in reports if fails([report], ERROR)]
        verdicts += verdict_on(self.end, self.header.name, self.record) if self.checked else []
        verdicts.sort(key=lambda r: (not fails([r], ERROR), not fails([r], WARNING)))  # no "passed" above a finding
        verdicts = [with_advice(r, lambda text: text.replace("SCRIPT", self._script or "SCRIPT")) for r in verdicts]
        if self.end.is_cut and not fails(verdicts, WARNING):
            return ["No check found a fault in the recorded steps; those after them were not judged"] * bool(verdicts)
        return [self._rendered(verdicts)] if verdicts else []

    def _remarks(self, path: str | Path, size: int) -> Iterator[str]:
        """The remarks below the tables, and the next command."""
        end, lost = self.end, self._lost
        said = not self.non_finite or self.non_finite[0].cause in (UNSEARCHED, SKIPPED)
        remarks = [*([self._bad_line] if lost and not said else []), *_notes(end, self._others)]
        remarks += [] if lost or self.header.every else _unrecorded(end, self.latest)
        remarks += [] if size else [f"all modules and times: hookcli show {shell_path(path)}"]
        passes = (lost or self.non_finite) and not self.checked and not end.exit_code
        remarks += ["--check would make the exit code 1"] if passes else []
        yield from (line for line in dict.fromkeys([*remarks, *end.notes]) if not line.startswith(_NEXT))
        then = next((note for note in end.notes if note.startswith(_NEXT)), "")
        yield then or self._again() or _further(self._shown, path, self.non_finite)

    def _again(self) -> str:
        """The command that records a step at which the loss jumped, and those before; "" if there is none to record."""
        jumped = [(one.jumped, model) for model, one in self._whole_courses.items() if one.jumped is not None]
        if not (jumped and self.record and self._script):
            return ""
        step, model = min(jumped)
        if any((entry.step, entry.model) == (step, model) for entry in self.record.entries):
            return ""
        return f"{_NEXT}hookcli run --every 1 --steps {max(0, step - _BEFORE)}:{step + 2} {self._script}"

    @property
    def _script(self) -> str:
        """The script and its arguments, as typed; "" where only a part of them is known."""
        return shlex.join(self.header.argv) if self.header.name.endswith(".py") and self.header.argv else ""

    def _told(self, lines: Iterable[str]) -> list[str]:
        return [wrapped(visible(line), self.width) for line in lines]

    def _rendered(self, reports: Sequence[Report]) -> str:
        view = View(depth=math.inf, width=self.width, color=self.color, bars=self.width is not None)
        return str(load("reporters", "table")().render(reports, view))


def fault(record: Record, checked: bool = True, *, said: bool = False) -> str:
    """The fault that a part found; if `checked`, also a loss that was not finite, or errors of the last steps."""
    if (found := part_fault(record, said)) or not checked:
        return found
    courses = record.courses()
    if lost := faults(courses) or "".join(map(non_finite_line, record.non_finite[:1])):
        return "a value was not finite" if said else lost
    judged = (report for step in record.last() for report in findings(step, courses.get(step.model), record=record))
    if errors := sum(one.fails(ERROR) for report in judged for one in report.findings):
        return f"{formatting.counted(errors, 'error')} in the recorded steps"
    of_run = (one for report in verdict_on(record.end, "", record) for one in report.findings)
    return next((one.message for one in of_run if one.fails(ERROR)), "")


def _most_recorded(models: Sequence[Mapping[str, Any]], number: int) -> list[Mapping[str, Any]]:
    """The models with the most recorded steps, in the order of their first forwards."""
    most = sorted(range(len(models)), key=lambda i: -models[i]["recorded_steps"])[:number]
    return [models[i] for i in sorted(most)]


def _last(name: str, latest: Mapping[tuple[str, str], RecordedStep]) -> list[RecordedStep]:
    """The model's last training step; the last step of any phase if it was not trained."""
    steps = [step for (model, _), step in latest.items() if model == name]
    return [step for step in steps if step.phase == "train"] or steps[-1:]


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
    """A model's steps and forwards, and its loss at the beginning and the end, if these are known.

    Of a model without an optimizer each forward with gradients is a step, and the loss is known of those recorded.
    """
    step, course = latest.get((model["model"], "train")), courses.get(model["model"], LossCourse())
    every = not model["steps"] and course.steps + course.unknown >= model["forwards"]
    begins = every or course.first_at == 0
    ends = every or (model["steps"] and course.ends >= model["steps"] - 1)
    losses = {"first_loss": course.first if begins else None, "loss": course.last if ends else None}
    return Row({**model, **losses, "name": model["model"], "seconds": step.plain_seconds if step else None})


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

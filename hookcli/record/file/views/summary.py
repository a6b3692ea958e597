"""The summary of a run on a screen: which models ran, their last recorded steps, and how to see more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hookcli.checks.base import ERROR, WARNING
from hookcli.checks.judgement import PROBE, fails
from hookcli.record.file.ranks.ranked_record import RankedRecord
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import End, NonFinite, RecordedStep
from hookcli.record.file.views.headlines import Aside, Fault, WithNext, first_bad_lines, parted, wrong_lines
from hookcli.record.file.views.outcome import beside_fault
from hookcli.record.file.views.overview import leading_report, overview, probe_reports, rows_before
from hookcli.record.file.views.run_lines import compiled_lines, left_out_line, non_finite_line, ran_line
from hookcli.record.file.views.verdict import judged, part_fault, script_of, verdict_on
from hookcli.registry import load
from hookcli.sources.module_code import code_of
from hookcli.system.escaping import shell_path, shell_word, visible, wrapped
from hookcli.table import Report, Row
from hookcli.table.columns.recorded import RECORDED_MODELS
from hookcli.table.formatting import counted
from hookcli.table.grouping import View
from hookcli.table.losses import LossCourse, faults
from hookcli.table.screen import fitted

_MODELS, _SHOWN = 10, 3  # rows in the table of models; models whose modules are shown
_ROWS = 14  # rows per model
_SIZES = ((_ROWS, True), (_ROWS, False), (_ROWS // 2, False), (0, False))
"""Rows per model, and whether facts on the step stand below them, the longest summary first."""
_TYPED = 2  # other lines on the screen: the command and the prompt; a remark on a bad value, the exit code of --check
_NEXT = "Next: "
_MANY, _TAIL = 24, 0.2  # steps of a run; its share, at the end, in which a step should have been recorded
_UNJUDGED = "No check ran: no forward of a module was recorded"
_BEFORE = 20  # steps before a jump: enough to tell what is usual


def summary(
    record: Record,
    own: Record,
    path: str | Path | None,
    view: View,
    *,
    checked: bool = False,
    faults_only: bool = False,
) -> str:
    """The text that ends a run, for a terminal of the `view`'s width and height (None: no terminal), in its colours.

    `record` is what all ranks have written by now, `own` the part of the process that prints it, which has ended: the
    same for one process. `path` is the record's path as the user would type it, None if no record was kept.
    `checked`: `run --check`. Of the tables of modules it has what leaves the first line on the screen.
    `faults_only`: `run --quiet`. It then says what is wrong, and is empty if nothing is.
    """
    end = own.end or End(None, None, 0.0, ())
    made = _Summary(record, own, end, path, replace(view, depth=math.inf, height=None), checked)
    if faults_only:
        return made.faults
    fails = bool(checked or part_fault(record))
    text = ""
    for rows, facts in _SIZES:
        text = made.text(rows, facts=facts)
        if view.height is None or text.count("\n") + _TYPED + bool(own.non_finite) + fails <= view.height:
            break
    return text


@dataclass(frozen=True)
class _Summary:
    """The arguments of `summary`, and its parts."""

    record: Record
    own: Record
    end: End
    path: str | Path | None
    view: View
    checked: bool

    def text(self, size: int, *, facts: bool) -> str:
        """The summary with so many rows per model, and with or without the facts on each step."""
        end, path, non_finite = self.end, self.path, self.own.non_finite
        if not end.models or path is None:
            lines = [*(end.notes or [_nothing(end)]), *[_UNJUDGED] * self.checked]
            lines += next_without_model(self.own, end)
            return "\n".join([*self._first, *self._told(lines), ""])
        rows = [self._model_row(model) for model in _most_recorded(end.models, _MODELS)]
        parts = [*self._first, "", self._rendered([Report("models", "", RECORDED_MODELS, rows, grouping="list")])]
        bad = next((one for one in non_finite[:1] if one.reports), None)
        # the rows before it say more than all
        tables, stopped = ([*rows_before(bad)], (bad.model, bad.phase, bad.step)) if bad else ([], None)
        whole = (s for s in self._shown if s.complete or (s.model, s.phase, s.step) != stopped)
        tables += [brief(step, self.record.courses().get(step.model), size, facts=facts) for step in whole if size]
        parts += [self._rendered(tables)] if tables else []
        parts += self._verdicts
        parts += [f"… and {len(end.models) - _MODELS} more models"] if end.models[_MODELS:] else []
        return "\n".join([*parts, *self._told(self._remarks(path, size)), ""])

    @cached_property
    def _latest(self) -> Mapping[tuple[str, str], RecordedStep]:
        """The last recorded step of each model and phase, judged: of several ranks the last one that all have."""
        latest = {(step.model, step.phase): step for step in self.own.last()}
        if isinstance(self.record, RankedRecord):
            whole = [entry for entry in self.record.entries if len(self.record.held(entry)) == self.record.ranks]
            latest |= {(step.model, step.phase): step for step in self.record.last(whole)}
        return {key: judged(self.record, step) for key, step in latest.items()}

    @cached_property
    def _lost(self) -> str:
        return faults(self.record.courses())

    @property
    def faults(self) -> str:
        """The lines on what is wrong, and what checks have found, if the run is `checked`; "" if nothing is wrong."""
        findings = self._verdicts if self.checked and fails(self._judged, WARNING) else []
        return "".join(f"{text}\n" for text in [*self._wrong, *findings])

    @cached_property
    def _found(self) -> list[str]:
        """The lines on what is not finite, on a loss that jumped, and of capabilities; remarks come last."""
        bad = [] if self._lost else self.own.non_finite[:1]
        goes_on = (one for one in bad if self.end.program_steps > one.step)  # else the line stands right above
        return wrong_lines(self.record, *map(non_finite_line, goes_on))

    @property
    def _wrong(self) -> list[str]:
        """The lines that name a fault, in the view's colours."""
        lines = self._told(f"hookcli: {text}" for text in self._found if not isinstance(text, Aside))
        return [f"\x1b[1;31m{text}\x1b[0m" for text in lines] if self.view.color else lines

    @cached_property
    def _first(self) -> list[str]:
        """The lines on what is wrong, on the run, and on what it compiled."""
        header, end = self.own.header, self.end
        asides = [f"hookcli: {text}" for text in self._found if type(text) is Aside]
        courses = self.record.courses()
        if header and header.ranks > 1:
            header = replace(header, name=f"{header.name}, rank {header.rank} of {header.ranks}")
            courses = {}  # other ranks may not have written all of their losses
        run = [f"hookcli: {ran_line(header, end, self.path, each)}" for each in (courses, None)] if header else []
        # without losses where these would take another line
        run = sorted(self._told(run), key=lambda text: text.count("\n"))[:1]
        return self._wrong + run + self._told([*compiled_lines(end, places=not self.checked), *asides])

    def _model_row(self, model: Mapping[str, Any]) -> Row:
        """A model's steps and forwards, and its loss at the beginning and the end, if these are known.

        Of a model without an optimizer each forward with gradients is a step, and the loss is known of those recorded.
        """
        name = model["model"]
        step, course = self._latest.get((name, "train")), self.record.courses().get(name, LossCourse())
        every = not model["steps"] and course.steps + course.unknown >= model["forwards"]
        begins = every or course.first_at == 0
        ends = every or (model["steps"] and course.ends >= model["steps"] - 1)
        losses = {"first_loss": course.first if begins else None, "loss": course.last if ends else None}
        return Row({**model, **losses, "name": name, "seconds": step.plain_seconds if step else None})

    @cached_property
    def _shown(self) -> list[RecordedStep]:
        """The last training step of the models with the most; the last step of any phase of one not trained."""
        shown: list[RecordedStep] = []
        for model in _most_recorded(self.end.models, _SHOWN):
            steps = [step for (name, _), step in self._latest.items() if name == model["model"]]
            shown += [step for step in steps if step.phase == "train"] or steps[-1:]
        return shown

    @cached_property
    def _others(self) -> list[RecordedStep]:
        return [step for step in self._latest.values() if step not in self._shown]

    @cached_property
    def _judged(self) -> list[Report]:
        """The verdicts on steps and on the run, those with findings first."""
        verdicts = [report for step in self._shown for report in probe_reports(step, PROBE)]
        others = (report for step in self._others for report in probe_reports(step, PROBE))
        verdicts += [report for report in others if fails([report], ERROR)]
        verdicts += verdict_on(self.record) if self.checked else []
        verdicts.sort(key=lambda r: (not fails([r], ERROR), not fails([r], WARNING)))  # no "passed" above a finding
        return [beside_fault(report) for report in verdicts] if self._wrong else verdicts

    @property
    def _verdicts(self) -> list[str]:
        """The findings, rendered, of a run that is checked; of another the first line says enough."""
        verdicts = self._judged
        if not (verdicts and self.checked):
            return [_UNJUDGED] * self.checked
        if self.end.is_cut and not fails(verdicts, WARNING):
            return ["No check found a fault in the recorded steps; those after them were not judged"]
        return [self._rendered(verdicts, above=False), *self._told(self.unshown())]

    def unshown(self) -> Iterator[str]:
        """The lines on the verdicts of trained models that are not shown: which of them passed, and which did not."""
        shown = {step.model for step in self._shown} | {report.model for report in self._judged}
        others = [step for step in self._others if step.phase == "train" and step.model not in shown]
        reports = [report for step in others for report in probe_reports(step, PROBE)]
        passed = [report.model for report in reports if not fails([report], WARNING)]
        for report in reports:
            if report.model not in passed:
                checks = dict.fromkeys(one.check for one in report.findings if one.fails(WARNING))
                yield f"{report.model}: {counted(report.totals['warnings'], 'warning')} ({', '.join(checks)})"
        if passed:
            yield f"the checks also passed on {counted(len(passed), 'more model')}: {', '.join(passed)}"

    def _remarks(self, path: str | Path, size: int) -> Iterator[str]:
        """The remarks below the tables, and the next command."""
        end, lost, non_finite = self.end, self._lost, self.own.non_finite
        remarks = [*(first_bad_lines(self.own) if lost else []), *_notes(end, self._others)]
        followed = not any(course.unknown for course in self.record.courses().values())
        remarks += [f"called outside any model: {called(end.others, counted=followed)}"] if end.others else []
        remarks += parted(self._found)[1]
        remarks += last_known(self.record.courses())
        every = self.own.header and self.own.header.every
        remarks += [] if lost or every else _unrecorded(end, self._latest)
        remarks += [] if size else [f"all modules and times: hookcli show {shell_path(path)}"]
        named = any(isinstance(line, Fault) for line in self._found)
        passes = (lost or non_finite or named or fails(self._judged, ERROR)) and not self.checked and not end.exit_code
        remarks += ["--check would make the exit code 1"] if passes else []
        yield from (line for line in dict.fromkeys([*remarks, *end.notes]) if not line.startswith(_NEXT))
        then = next((note for note in end.notes if note.startswith(_NEXT)), "")
        first = next(iter(self._found), "")
        led = f"{_NEXT}{first.then}" if isinstance(first, WithNext) and first.then else ""
        yield then or self._again() or led or _further(self._shown, path, non_finite)

    def _again(self) -> str:
        """The command that records a step at which the loss jumped, and those before; "" if there is none to record."""
        jumped = [(one.jumped, model) for model, one in self.record.courses().items() if one.jumped is not None]
        script = script_of(self.own)
        if not (jumped and script):
            return ""
        step, model = min(jumped)
        if any((entry.step, entry.model) == (step, model) for entry in self.record.entries):
            return ""
        return f"{_NEXT}hookcli run --every 1 --steps {max(0, step - _BEFORE)}:{step + 2} {script}"

    def _told(self, lines: Iterable[str]) -> list[str]:
        return [wrapped(visible(line), self.view.width) for line in lines]

    def _rendered(self, reports: Sequence[Report], *, above: bool = True) -> str:
        return str(load("reporters", "table")().render(reports, replace(self.view, above=above)))


def brief(step: RecordedStep, course: LossCourse | None, rows: int, *, facts: bool) -> Report:
    """The leading report with at most so many rows, grouped at a depth that fits, else the first and last; without the
    norms that `ratio` is made of, and with the `facts` on the whole step if asked for.

    It is named as the last recorded step before a loss that was not finite, if it is.
    """
    report = leading_report(step)
    if course and course.fault() and step.phase == "train" and step.step < course.first_fault:
        report = replace(report, model=f"{report.model}, last recorded step before the {course.first_kind}")
    columns = [column for column in report.columns if column.name not in ("weight", "update")]
    report = fitted(replace(report, columns=columns, totals=report.totals if facts else {}), rows)
    left_out = len(report.rows) - rows
    if left_out <= 0:
        return report
    gap = Row({"fqn": f"… {left_out} more …"})
    return replace(report, rows=[*report.rows[: rows // 2], gap, *report.rows[-(rows // 2) :]])


def _most_recorded(models: Sequence[Mapping[str, Any]], number: int) -> list[Mapping[str, Any]]:
    """The models with the most recorded steps, in the order of their first forwards."""
    most = sorted(range(len(models)), key=lambda i: -models[i]["recorded_steps"])[:number]
    return [models[i] for i in sorted(most)]


def _nothing(end: End) -> str:
    why = f" ({'; '.join(end.notes)})" if end.notes else ""
    if end.others:
        return f"no module with parameters was called{why}; modules without parameters: {called(end.others)}"
    return f"no module was called{why}"


def next_without_model(own: Record, end: End) -> list[str]:
    """The next command after a run that called no module of a script with a model; none if it failed, or may train."""
    if any((end.others, end.error, end.exit_code, not script_of(own))) or own.header is None:
        return []
    code = code_of(own.header.argv[0])
    return [f"{_NEXT}hookcli shapes {shell_word(code.names[0])}"] if code and not code.runs else []


def called(others: Mapping[str, int], *, counted: bool = True) -> str:
    """The modules that ran outside any model, and how often; the numbers are less where steps were not followed."""
    return ", ".join(f"{name} ({count:,})" if counted else name for name, count in others.items())


def _notes(end: End, steps: Iterable[RecordedStep]) -> list[str]:
    notes = [f"{model['model']}: {note}" for model in end.models for note in model["notes"]]
    notes += [f"{step.model}: {note}" for step in steps for note in step.notes]
    notes += [left_out_line(end)]
    return list(filter(None, dict.fromkeys(notes)))


def last_known(courses: Mapping[str, LossCourse]) -> Iterator[str]:
    """Say of which step the last loss is, where it is not known of later ones."""
    for model, course in courses.items():
        if 0 <= course.known_at < course.ends:
            yield f"{model}: the last known loss is that of step {course.known_at:,}, of {course.ends + 1:,} steps"


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

"""Selects which steps of a record to show, and which of their reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from hookcli.errors import UsageError, unknown
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import NonFinite, RecordedStep, StepEntry
from hookcli.record.file.views.outcome import judged_reports
from hookcli.record.file.views.over_time import (
    every_step,
    history,
    needed,
    of_figure,
    of_places,
    over_time,
    report_title,
    spoken,
)
from hookcli.record.file.views.overview import joined, probe_reports, rows_before
from hookcli.record.file.views.verdict import verdict_on
from hookcli.system.escaping import shell_path
from hookcli.table import Report, Row, Shown, Skipped
from hookcli.table.columns import columns_named
from hookcli.table.formatting import listed

COMPILED = "compiled"
"""The probe that selects the verdict on the work of torch.compile."""

_SAME = {"grad_norm": ("unclipped_grad", "param_grad")}  # what --rule calls the norm of all gradients


OfStep = TypeVar("OfStep", StepEntry, NonFinite)


class NothingToShowError(UsageError):
    """The selected steps are all damaged, or nothing was measured in them; a later one may be whole."""


@dataclass(frozen=True, slots=True)
class Query:
    """Selects by `step` (else the last ones), `model` and `phase`; `every_step` takes all that were finished.

    Shows the report of one `probe`, else all joined; with `over_time` the history of that module or parameter, where ""
    and "." name the model itself; if `match` is given as well, that column of any report, for the places that match.
    """

    step: int | None = None
    model: str | None = None
    phase: str | None = None
    probe: str | None = None
    over_time: str | None = None
    every_step: bool = False
    match: str | None = None

    def of(self, lines: Iterable[OfStep]) -> list[OfStep]:
        """The lines that are of the selected model and phase."""
        return [one for one in lines if self.model in (None, one.model) and self.phase in (None, one.phase)]

    def within(self, record: Record) -> Selection:
        """Return the part of a record that this query selects."""
        return Selection(**asdict(self), record=record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Query):
    """The part of a `record` that a query selects."""

    record: Record

    def each(self) -> Iterator[Report]:
        """Yield the reports of every selected step. Raises UsageError, as `reports` does.

        Steps that were not finished are left out, unless there is no other of the model and phase.
        """
        entries, any_report = self._known(), False
        chosen = self.record.finished(entries) if self.step is None else self._at_step(entries)
        for report in every_step(self.record, chosen, self.probe):
            any_report = True
            yield report
        if any_report or not chosen:
            return
        if self.probe and any(self.record.last(chosen)):
            raise UsageError(self._no_probe(self.probe))
        raise NothingToShowError(self._nothing(chosen, entries))

    def reports(self) -> list[Report]:
        """The selected reports. Raises UsageError for what the record doesn't have, or if nothing can be shown."""
        entries = self._known()
        if self.over_time is not None:
            return self._history("" if self.over_time == "." else self.over_time, self._of_one_phase(entries))
        chosen = entries if self.step is None else self._at_step(entries)
        steps = self.record.last(chosen) if self.step is None else self.record.steps(chosen)
        measured = [step for step in steps if step.reports]
        if chosen and not measured:
            raise NothingToShowError(self._nothing(chosen, entries))
        probe, whole = self.probe, {self.step, self.model, self.phase} == {None}
        if probe is None:
            return judged_reports(self.record, measured, joined, whole=whole)
        compiled = probe == COMPILED and self.record.end and self.record.end.compiled
        if compiled and (of_run := verdict_on(self.record, compiling_alone=True)):
            return of_run
        reports = judged_reports(self.record, measured, lambda step: probe_reports(step, probe), whole=whole)
        if not reports:
            raise UsageError(self._no_probe(probe))
        return reports

    def non_finite(self) -> list[Report]:
        """The rows before the first non-finite value, if it is selected."""
        if self.step is not None or self.probe or self.over_time is not None:
            return []
        return [report for one in self.of(self.record.non_finite)[:1] for report in rows_before(one)]

    def _known(self) -> list[StepEntry]:
        entries = self.record.entries
        models = [*(entry.model for entry in entries), *self.record.trained()]
        phases = [*(entry.phase for entry in entries), *["train"] * bool(self.record.losses)]
        for what, typed, known in (("--model", self.model, models), ("--phase", self.phase, phases)):
            if typed is not None and typed not in known:
                raise UsageError(unknown(what, typed, dict.fromkeys(known)))
        return self.of(entries)

    def _of_one_phase(self, entries: Sequence[StepEntry]) -> list[StepEntry]:
        """For a model that was trained, the training steps only: both phases in one line would say little."""
        trained = {entry.model for entry in entries if entry.phase == "train"}
        return [e for e in entries if self.phase or e.phase == "train" or e.model not in trained]

    def _history(self, fqn: str, entries: Sequence[StepEntry]) -> list[Report]:
        shown = self.record.finished(entries)
        if self.match is not None:
            return of_places(list(self.record.steps(shown)), fqn, self.match)
        reports = over_time(self.record.steps(shown, needed(fqn)), fqn)
        of_losses = self._of_losses(entries) if fqn in ("", "loss") else []
        if not reports:
            known = {name for step in self.record.last(entries) for name in known_names(step)}
            if entries and not (known or of_losses):
                raise NothingToShowError(self._nothing(entries, ()))
            if fqn in known:
                raise UsageError(f"--over-time {fqn}: no statistics were recorded for it")
            reports = self._figure(fqn, shown, known) if known or not of_losses else []
        if fqn in ("", "loss"):
            reports = [self._with_every_loss(report) for report in [*reports, *of_losses]]
        left_out = [entry for entry in entries if entry not in shown]
        return [replace(report, skipped=_unfinished(report, fqn, left_out)) for report in reports]

    def _of_losses(self, entries: Sequence[StepEntry]) -> list[Report]:
        """Reports without rows of the models that have losses, but no recorded training step that can be read."""
        read = {step.model for step in self.record.last(entries) if step.phase == "train"}
        models = [model for model in self.record.trained() if model not in read and self.record.losses_of(model)]
        chosen = [model for model in models if self.model in (None, model) and self.phase in (None, "train")]
        return [
            replace(history(model, "train", []), columns=columns_named("step", "forward", "loss")) for model in chosen
        ]

    def _figure(self, name: str, shown: Sequence[StepEntry], known: Iterable[str]) -> list[Report]:
        """A figure of the models themselves over time. Raises UsageError if there is none of this name."""
        models = over_time(self.record.steps(shown, needed("")), "")
        for same in _SAME.get(name, (name,)):
            if reports := of_figure(models, same):
                return reports
        columns = [column for report in models for column in report.columns]
        figures = dict.fromkeys(column.name for column in columns if column.charted and column.shown != Shown.MARK)
        see = f"`hookcli show {shell_path(self.record.path)}` lists modules; figures: {', '.join(figures)}"
        raise UsageError(unknown("module, parameter or figure", name, {*known, *figures}, see=see))

    def _at_step(self, entries: Sequence[StepEntry]) -> list[StepEntry]:
        of_step = [entry for entry in entries if entry.step == self.step]
        if not of_step:
            every = f" (every {self.record.header.every:,})" if self.record.header and self.record.header.every else ""
            raise UsageError(f"step {self.step} was not recorded{self._nearest(entries) or '; no step was'}{every}")
        return of_step

    def _nothing(self, chosen: Sequence[StepEntry], entries: Sequence[StepEntry]) -> str:
        """Why the chosen steps show nothing, and which other steps are nearest."""
        damaged = [entry.line for entry in chosen if entry.line in self.record.damaged]
        lines = f"line{'s' * (len(damaged) != 1)} {listed(damaged)}"
        why = f"all its measurements are damaged ({lines})" if damaged else "nothing was measured"
        if self.step is None:
            return f"{self.record.path}: no recorded step can be shown: {why}"
        return f"step {self.step} can't be shown: {why}{self._nearest([e for e in entries if e not in chosen])}"

    def _nearest(self, entries: Sequence[StepEntry]) -> str:
        steps, step = sorted({entry.step for entry in entries}), self.step or 0
        below, above = [s for s in steps if s < step][-1:], [s for s in steps if s > step][:1]
        near = [f"{s:,}" for s in (*below, *above)]
        return f"; nearest: {' and '.join(near)}" if near else ""

    def _with_every_loss(self, report: Report) -> Report:
        """The report with the loss of every step, recorded or not: as rows, if it has nothing else."""
        losses = self.record.losses_of(report.model) if report.meta["mode"] == "train" else {}
        if not losses:
            return report
        report = replace(report, meta={**report.meta, "loss_of_steps": [sorted(losses.items())]})
        if {column.name for column in report.columns} - {"step", "forward", "loss"}:
            return report
        recorded = {row["step"]: row.get("loss") for row in report.rows}
        return replace(report, rows=[Row({"step": n, "loss": loss}) for n, loss in sorted((recorded | losses).items())])

    def _no_probe(self, probe: str) -> str:
        known = {one for step in self.record.last() for one in step.probes}
        why = "the selected steps have no such report (gradients and updates exist in training only)"
        return f"--probe {probe}: {why}" if probe in known else unknown("--probe", probe, known)


def known_names(step: RecordedStep) -> set[str]:
    """Every module and parameter of a step, and their containers, which need not have run by themselves."""
    parts = [row.fqn.split(".") for report in step.reports for row in report.rows]
    return {".".join(names[:n]) for names in parts for n in range(1, len(names) + 1)} - {""}


def _unfinished(report: Report, fqn: str, entries: Iterable[StepEntry]) -> list[Skipped]:
    """The steps that a report over time leaves out."""
    model_and_mode = (report.model, report.meta["mode"])
    return [
        Skipped(f"{model_and_mode[0]}, step {entry.step:,}", "the step was not finished; --step shows it")
        for entry in entries
        if (report_title(entry.model, fqn), spoken(entry.phase)) == model_and_mode
    ]

"""hookcli explore"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import typer

from hookcli.capabilities.explore.places import Subject
from hookcli.commands.check import CheckOptions
from hookcli.commands.diff_files import is_record
from hookcli.commands.option_fields import OnlyFields
from hookcli.commands.options import DATA, DEFAULT_MODEL, RUNNING, Options, model_argument
from hookcli.commands.progress import working
from hookcli.commands.report import OF_CHECKS, job_of
from hookcli.commands.show import remarks
from hookcli.errors import FAILED, UsageError
from hookcli.record.file.ranks.ranked_record import open_record
from hookcli.record.file.reading import Record
from hookcli.record.file.views.over_time import spoken
from hookcli.record.file.views.query import Query, Selection
from hookcli.record.file.views.run_lines import non_finite_line
from hookcli.system.files import at_rest
from hookcli.system.stdout import report_stream
from hookcli.system.streams import is_terminal
from hookcli.table import Finding, Report
from hookcli.table.files import looks_saved, read_reports

EXAMPLES = ("hookcli explore resnet50", "hookcli explore net.py:Net --ops", "hookcli explore train.run.jsonl")
FIRST = "weights input batch_size train device ops data select ignore"
_TARGET = "A model, a record or a saved report; hookcli run writes records, --output FILE.json saves reports."
_SHARED = (*RUNNING, *DATA, "ops", "edit", "quiet", "debug")


def explore(
    ctx: typer.Context,
    target: Annotated[str, model_argument("MODEL", _TARGET, show_default=True)] = DEFAULT_MODEL,
    *,
    checks: Annotated[CheckOptions, OnlyFields(OF_CHECKS)],
    options: Annotated[Options, OnlyFields(_SHARED)],
) -> int:
    """Explore a model, a record or a saved report in the terminal.

    For the keyboard; `hookcli show` prints tables, `hookcli report` writes a page to keep and send. Shows a tree of
    modules, the figures of the selected one, findings, and a search as on pages; for a record also its steps, and
    figures over time. A model is measured first, as for `hookcli report`. Needs Textual: pip install
    'hookcli[explore]'.
    """
    for name, stream in (("stdout", report_stream()), ("stderr", sys.__stderr__), ("stdin", sys.__stdin__)):
        if not is_terminal(stream):
            raise UsageError(f"{name} is not a terminal; `hookcli show` prints records and saved reports")
    if find_spec("textual") is None:
        raise UsageError("explore needs Textual: pip install 'hookcli[explore]'")
    error = None
    with at_rest(Path(target)) as source:
        if is_record(str(source)):
            subjects = of_record(open_record(Path(target), source))
        elif looks_saved(target):
            subjects = of_reports(read_reports(target, source))
        else:
            job = job_of(ctx, target, checks, options)
            from hookcli.commands.check_models import examined

            with working(job.options) as progress:
                examination = examined(job, progress, in_full=True)
            subjects, error = of_reports(examination.shown), examination.error
        from hookcli.capabilities.explore.app import Explorer

        app = Explorer(subjects)
        app.run()
    if error:
        raise error
    return FAILED if app.return_code == 1 else app.return_code or 0  # Textual has shown the error, or got a signal


def of_reports(reports: Sequence[Report]) -> list[Subject]:
    """The models of reports; of a comparison, each side's."""
    groups: dict[str, list[Report]] = {}
    for report in reports:
        groups.setdefault(" · ".join(filter(None, (report.model, report.meta.get("side")))), []).append(report)
    return [Subject(name, {0: own}.__getitem__) for name, own in groups.items()]


def of_record(record: Record) -> list[Subject]:
    """The models of a record by phase: with remarks on a step, then trained ones. Raises UsageError without a step."""
    subjects, lock = list[Subject](), Lock()
    if not record.entries:
        raise UsageError(f"{record.path}: no step was recorded")
    of_steps = [line for line in remarks(record) if " step " in line]
    for model, phase in sorted({entry.key: 0 for entry in record.entries}, key=lambda key: key[1] != "train"):
        read = partial(_read, lock, Query(model=model, phase=phase).within(record))
        steps = sorted({entry.step for entry in record.entries if entry.key == (model, phase)})
        bad: list[Any] = [one for one in record.non_finite if (one.model, one.phase) == (model, phase)][:1]
        at = {f"{step:,}": place for place, step in enumerate(steps)}
        fqns = {f"{one.step:,}": one.place for one in record.of_parts if one.model == model}
        fqns |= {f"{one.step:,}": one.fqn for one in bad}
        trained, losses = (of_steps, record.losses_of(model)) if phase == "train" else ([], {})
        lines = [x for x in trained if x.startswith(f"{model}: ") or f"({model})" in x or f"({model}, rank " in x]
        lines += map(non_finite_line, bad)
        named = [(x.partition(" step ")[2].split(" ")[0].rstrip(",:;)"), x) for x in lines]
        first_lines = {Finding("", "", fqns.get(step, ""), x): at.get(step) for step, x in named}
        title, history = f"{model} · {spoken(phase)}", partial(read, "over_time")
        subjects.append(Subject(title, partial(read, "step"), steps, losses, history, first_lines))
    return sorted(subjects, key=lambda one: not one.lines)


def _read(lock: Lock, selection: Selection, what: str, value: Any) -> Sequence[Report]:
    """The reports of a selection with a further setting; none if nothing was measured."""
    with lock, suppress(UsageError, OSError):
        return replace(selection, **{what: value}).reports()
    return ()

"""Compares two models, saved reports, or one of each, for `hookcli diff`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hookcli.commands.diff_files import narrowing, require_rows
from hookcli.commands.diff_kinds import EXAMPLE, Asked, Side
from hookcli.commands.diff_sides import SideSpec, parsed_sides
from hookcli.commands.diff_verdict import judged
from hookcli.commands.mistakes import ending_in_example
from hookcli.commands.next_command import next_compared
from hookcli.commands.options import Options
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import Progress, import_torch, salvaging
from hookcli.commands.run_options import StepOptions
from hookcli.diff.rows import diff_reports
from hookcli.table import Report
from hookcli.table.columns.costs import SIDE_TIMES
from hookcli.table.columns.layouts import DIFF, PRECISION, TENSORS, with_operators
from hookcli.table.files import looks_saved, read_reports, unfamiliar

if TYPE_CHECKING:
    from hookcli.commands.diff_models import ModelRuns


class SavedReports(Side):
    """Reports in files, FILE.json."""

    what = "saved reports"
    place = 4
    no_operators = "saved reports and records have operators if --ops measured them; leave it out"

    def fits(self, text: str) -> bool:
        return looks_saved(text)

    def compare(self, asked: Asked) -> int:
        """Compare two, or one with a model, which runs under the same probes."""
        sides = parsed_sides(asked.a, asked.b, asked.options)
        asked.check_gradients()
        options, output = asked.options, Output(asked.options)
        output.check_columns((*DIFF, *PRECISION, *SIDE_TIMES))
        with salvaging(output, torch=False) as progress:
            make_runs = partial(model_runs, options, progress, asked.step)
            with ending_in_example(EXAMPLE):
                left, right = reports_of_both(sides, options, make_runs)
            wanted = narrowing(options)(left, right)
            left, right = (require_rows(wanted, side, options) for side in (left, right))
            reports = diff_reports(left, right, asked.tolerance)
        return judged(reports, output)


def compare_models(asked: Asked, time: bool) -> int:
    """Write the comparison of two models; `time`: with their times. Returns 1 if they differ."""
    sides = parsed_sides(asked.a, asked.b, asked.options)
    asked.check_gradients()
    own, options, output = asked.own, asked.options, Output(asked.options)
    output.check_columns((*(with_operators(TENSORS) if options.ops else TENSORS), *PRECISION, *SIDE_TIMES))
    with salvaging(output, torch=False) as progress:
        with ending_in_example(EXAMPLE):
            made = model_runs(options, progress, asked.step, own.backward, time)
            runs = replace(made, float64=own.float64, isolate=own.isolate)
            pair = runs.pair(sides[0], sides[1], own.same_weights)
        report = next_compared(runs.compare(pair, asked.tolerance), sides, own, asked.step, options)
    return judged([report], output)


def model_runs(
    options: Options, progress: Progress, step: StepOptions, backward: bool = False, time: bool = False
) -> ModelRuns:
    """Import torch, and make the runs of models. Raises UsageError for a wrong --loss before models are built."""
    import_torch(options, progress)
    from hookcli.commands.diff_models import ModelRuns

    return ModelRuns(options, progress, step.make(), backward, time)


def reports_of_both(
    sides: Sequence[SideSpec], options: Options, make_runs: Callable[[], ModelRuns]
) -> tuple[list[Report], list[Report]]:
    """The reports of both sides, of which one at least is saved; a model runs under the probes of the other side's."""
    saved = [read_reports(side.file) if side.file else [] for side in sides]
    for side, reports in zip(sides, saved, strict=True):
        remark(unfamiliar(side.file, reports) if side.file else None, options)
    a, b = (saved[n] if side.file else make_runs().like(saved[1 - n], side) for n, side in enumerate(sides))
    return a, b

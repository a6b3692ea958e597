"""hookcli diff"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from hookcli.commands.backward_options import OnePassOptions, StepOptions
from hookcli.commands.diff_dumps import DumpRuns
from hookcli.commands.diff_models import ModelRuns
from hookcli.commands.diff_records import compare_records, is_record
from hookcli.commands.diff_sides import SideSpec, parse_side
from hookcli.commands.diff_weights import compare_weights
from hookcli.commands.next_command import with_same_weights
from hookcli.commands.options import (
    DATA,
    GRADIENTS,
    SHOWING,
    OnlyFields,
    Options,
    TimeOptions,
    complete_models,
    option,
    tolerance_option,
)
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import Progress, working
from hookcli.commands.typer_classes import typed_names
from hookcli.diff.rows import beyond, diff_reports, unlike
from hookcli.diff.tolerance import Tolerance
from hookcli.diff.verdict import weights_come_first
from hookcli.errors import HookcliError, UsageError
from hookcli.record.file.comparison.record_diff import Narrowing, Wanted
from hookcli.table import Report
from hookcli.table.columns.costs import SIDE_TIMES
from hookcli.table.columns.layouts import DIFF, DUMPED, TENSORS, with_operators
from hookcli.table.dump import is_dump
from hookcli.table.files import looks_saved, read_reports, unfamiliar
from hookcli.table.names import checked_filter
from hookcli.tensors.files.opening import holds_tensors

_SHARED = (
    *("arg", "weights", "task", "strict", "seed", "input", "batch_size", "fill", "train", "device", "dtype", "threads"),
    *DATA,
    *("fastpath", "edit", "ops", "depth", "match", "type", "columns", "sort", "format", "output", "quiet", "debug"),
)
_RUNNING = {*_SHARED, "loss", "backward_vector"} - {"depth", "match", *SHOWING}  # options of models and of runs
EXAMPLES = (
    "hookcli diff resnet18 'resnet18 --dtype bfloat16' --rtol 2e-2",
    "hookcli diff vit_b_16 'vit_b_16 --no-fastpath' --depth 1",
    "hookcli diff net.py:Net 'net.py:Net --weights new.pt' -i 1x3x8x8",
    "hookcli diff 'net.py:Net --path old' 'net.py:Net --path new' -i 1x3x8x8",
    "hookcli diff net.py:Net 'net.py:Net --compile *' -i 1x3x8x8 --backward",
    "hookcli diff before.json after.json",
    "hookcli diff dumped/ 'resnet18 --device cuda'",
    "hookcli diff base.safetensors tuned.safetensors",
    "hookcli diff before.run.jsonl after.run.jsonl",
)
COLUMNS = TENSORS
FIRST = (
    *("rtol", "same_weights", "backward", "ops"),
    *("weights", "input", "depth", "match", "columns", "sort", "format", "output"),
)
_PANEL = "Comparison"


def _side(name: str, text: str) -> Any:
    return typer.Argument(metavar=name, help=text, show_default=False, autocompletion=complete_models)


@dataclass(frozen=True)
class DiffOptions:
    """Options of `hookcli diff` alone."""

    rtol: float | None = tolerance_option(
        _PANEL, "Relative tolerance, by norm [sqrt of the dtype's epsilon: 3.5e-4 for float32]."
    )
    atol: float | None = tolerance_option(_PANEL, "Absolute tolerance, of the root mean square [0].")
    same_weights: bool = option(False, _PANEL, "Copy A's weights into B.", "--same-weights")
    backward: bool = option(False, GRADIENTS, "Compare gradients, too.", "--backward")


def diff(
    ctx: typer.Context,
    a: Annotated[str, _side("A", "A model, a saved report (FILE.json), a record, a dump, or a file of weights.")],
    b: Annotated[str, _side("B", "Another; its options go in the same quotes: 'resnet50 --dtype bfloat16'.")],
    *,
    own: DiffOptions,
    step: OnePassOptions,
    options: Annotated[Options, OnlyFields(_SHARED)],
    timing: TimeOptions,
) -> int:
    """Compare two models, reports, records, dumps or files of weights.

    The models run in lockstep on one input; their modules' outputs, parameters and buffers are compared tensor by
    tensor. Options within the quotes apply to that model alone: those under Model and Run, --path DIR to import it
    from DIR, and --compile GLOB to compile matching modules (with --compile-backend NAME). Options outside the quotes
    apply to both. Of two records from `hookcli run`, the steps that both have are compared: the first step and module
    beyond tolerance, and what grew from there. A folder that --dump has written is compared tensor by tensor with
    another one, or with a model, which runs on the same inputs. Of two files or folders of weights (.safetensors,
    .gguf, .pt), all tensors are compared: which differ, which are renamed, and which changes are of low rank, as LoRA
    makes them. Exit code 1: a difference is beyond tolerance.
    """
    typed = (("--same-weights", own.same_weights), ("--backward", own.backward), ("--time", timing.time))
    given = [name for name, on in typed if on]
    for what, named in (("records", is_record), ("dumps", is_dump), ("files of tensors", holds_tensors)):
        if given and (named(a) or named(b)):
            raise UsageError(f"{given[0]}: both sides must be models, not {what}")
    tolerance = Tolerance(own.rtol, own.atol)
    if options.ops and any(is_record(side) or looks_saved(side) for side in (a, b)):
        raise UsageError("--ops: saved reports and records have operators if --ops measured them; leave it out")
    if is_record(a) or is_record(b):
        return compare_records(a, b, tolerance, narrowing(options), options)
    if is_dump(a) or is_dump(b):
        output = Output(options)
        output.check_columns(with_operators(DUMPED))
        with _salvaging(output, options) as progress:
            report = DumpRuns(options, step, typed_names(ctx), tolerance, progress).compare(a, b)
        output.write([report])
        return _judged([report], options, output.for_people)
    if holds_tensors(a) and holds_tensors(b):
        for name in sorted(typed_names(ctx) & _RUNNING):
            raise UsageError(f"--{name.replace('_', '-')}: is for models; both sides are files of tensors")
        return compare_weights(a, b, tolerance, options)
    sides = [parse_side(label, text, options) for label, text in (("A", a), ("B", b))]
    if (step.loss or step.backward_vector) and not own.backward:
        name = "--loss" if step.loss else "--backward-vector"
        raise UsageError(f"{name}: without --backward nothing is differentiated")
    if given and any(side.file for side in sides):
        raise UsageError(f"{given[0]}: both sides must be models, not saved reports")
    output = Output(options)
    columns = DIFF if any(side.file for side in sides) else with_operators(TENSORS) if options.ops else TENSORS
    output.check_columns((*columns, *SIDE_TIMES))
    with _salvaging(output, options) as progress:
        saved = [read_reports(side.file) if side.file else None for side in sides]
        live = ModelRuns(options, progress, own.backward, step, timing.time)
        reports = _compared(sides, saved, tolerance, live, own.same_weights)
    remark_unfamiliar(sides, saved, options)
    output.write([next_compared(reports[0], sides, own, step, options), *reports[1:]])
    return _judged(reports, options, output.for_people)


@contextmanager
def _salvaging(output: Output, options: Options) -> Iterator[Progress]:
    """Show progress while the block runs, and what was compared if it fails."""
    try:
        with working(options) as progress:
            yield progress
    except (HookcliError, KeyboardInterrupt) as error:
        partial: Sequence[Report] = getattr(error, "reports", ())
        if any(report.totals.get("compared", len(report.rows)) for report in partial):
            output.salvage(partial)
        raise


def remark_unfamiliar(sides: Sequence[SideSpec], saved: Sequence[list[Report] | None], options: Options) -> None:
    """Say which figures of the saved sides another version of hookcli has measured."""
    for side, held in zip(sides, saved, strict=True):
        if side.file and held and (unknown := unfamiliar(side.file, held)):
            remark(unknown, options)


def next_compared(
    report: Report, sides: Sequence[SideSpec], own: DiffOptions, step: StepOptions, options: Options
) -> Report:
    """The comparison of two models; where nobody chose the weights that differ first, it names the next command."""
    chosen = own.same_weights or any(side.file or side.options.weights for side in sides)
    if chosen or not weights_come_first(report):
        return report
    then = with_same_weights([side.text for side in sides], own, step, options)
    return replace(report, meta={**report.meta, "next": then})


def both_sides(
    sides: Sequence[SideSpec], saved: Sequence[list[Report] | None], live: ModelRuns
) -> tuple[list[Report], list[Report]]:
    """The reports of both sides, of which one at least is saved; a model runs under the probes of the other side's."""
    known = next(held for held in saved if held is not None)
    a, b = (held if held is not None else live.like(known, side) for side, held in zip(sides, saved, strict=True))
    return a, b


def _compared(
    sides: Sequence[SideSpec],
    saved: Sequence[list[Report] | None],
    tolerance: Tolerance,
    live: ModelRuns,
    same_weights: bool,
) -> list[Report]:
    if all(held is None for held in saved):
        return [live.compare(live.pair(sides[0], sides[1], same_weights), tolerance)]
    a, b = both_sides(sides, saved, live)
    narrow = narrowing(live.options)
    left, right = (_require_rows(narrow(a, b), side, live.options) for side in (a, b))
    return diff_reports(left, right, tolerance)


def _require_rows(wanted: Wanted, reports: Sequence[Report], options: Options) -> list[Report]:
    """Reduce reports to the wanted rows. Raises UsageError if there are none."""
    match, kind = options.match, options.type
    left = [replace(report, rows=[*filter(wanted, report.rows)]) for report in reports]
    if (match or kind) and not any(report.rows for report in left):
        raise UsageError(f"nothing to compare: no row matches --match {match!r} and --type {kind}")
    return left


def narrowing(options: Options) -> Narrowing:
    """Return what makes, for the reports of both sides, the test of rows by --match and --type.

    Raises UsageError if nothing on either side fits one of these.
    """

    def narrow(*sides: Iterable[Report]) -> Wanted:
        rows = (row for side in sides for report in side for row in report.rows)
        names = {row.fqn: row.get("type") or "" for row in rows}
        matches = checked_filter(options.match, options.type, names)
        return lambda row: (
            matches(row.fqn, row.get("type") or "") and (options.type is None or row.get("type") == options.type)
        )

    return narrow


def _judged(reports: Sequence[Report], options: Options, readable: bool) -> int:
    """Say what it comes to where the output does not, and how the runs differ. 1: something is beyond tolerance."""
    for report in reports:
        for text in filter(None, (unlike(report), None if readable else report.totals.get("structure"))):
            remark(text, options)
        if not readable:
            counts = f"{report.totals['beyond']:,} of {report.totals['compared']:,} beyond tolerance"
            remark(f"{report.totals['verdict']}; {counts}", options)
            for line in ("weights", "times"):
                if line in report.totals:
                    remark(report.totals[line], options)
    if not any(report.totals["compared"] for report in reports):
        raise UsageError("nothing to compare: the two sides have no module in common")
    return int(beyond(reports))

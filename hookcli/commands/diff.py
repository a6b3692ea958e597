"""hookcli diff"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from hookcli.commands.diff_files import compare_records, compare_weights, is_record, narrowing, require_rows
from hookcli.commands.diff_files import example as example_of
from hookcli.commands.diff_sides import IN_QUOTES, SideSpec, both_sides, is_onnx, parse_side
from hookcli.commands.mistakes import ending_in_example
from hookcli.commands.next_command import next_compared
from hookcli.commands.option_fields import OnlyFields, option, tolerance_option, words_of
from hookcli.commands.options import DATA, GRADIENTS, RUNNING, SHOWING, Options, TimeOptions, model_argument
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import Progress, import_torch, salvaging
from hookcli.commands.run_options import OnePassOptions, StepOptions
from hookcli.commands.typer_classes import typed_names
from hookcli.diff.rows import beyond, diff_reports, unlike
from hookcli.diff.settings import advice
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError
from hookcli.sources.misnamed import meant_by
from hookcli.table import Report
from hookcli.table.columns.costs import SIDE_TIMES
from hookcli.table.columns.layouts import DIFF, DUMPED, PRECISION, TENSORS, with_operators
from hookcli.table.dump import is_dump
from hookcli.table.files import looks_saved, read_reports, unfamiliar
from hookcli.tensors.files.opening import holds_tensors

if TYPE_CHECKING:
    from hookcli.commands.diff_models import ModelRuns

_SHARED = (*RUNNING, *DATA, "fastpath", "edit", "ops", "depth", "match", "type", *SHOWING)
_RUNNING = {*_SHARED, "loss", "backward_vector"} - {"depth", "match", *SHOWING}  # options of models and of runs
EXAMPLES = (
    "hookcli diff resnet18 'resnet18 --dtype bfloat16' --rtol 2e-2",
    "hookcli diff net.py:Net 'net.py:Net --weights new.pt' -i 1x3x8x8",
    "hookcli diff 'net.py:Net --path old' 'net.py:Net --path new' -i 1x3x8x8",
    "hookcli diff 'vit_b_16 --amp' --depth 1",
    "hookcli diff 'net.py:Net --compile' -i 1x3x8x8 --backward",
    "hookcli diff before.json after.json",
    "hookcli diff dumped/ 'resnet18 --device cuda'",
    "hookcli diff net.py:Net net.onnx",
    "hookcli diff base.safetensors tuned.safetensors",
    "hookcli diff before.run.jsonl after.run.jsonl",
)
COLUMNS = (*TENSORS, *PRECISION)
ELSEWHERE = IN_QUOTES
_A = "A model, report (FILE.json), record, dump, file of weights or .onnx file."
_B = "Another, with its options in quotes: 'resnet50 --dtype bfloat16'."
FIRST = "rtol same_weights backward ops weights input depth match columns sort format output"


@dataclass(frozen=True)
class DiffOptions:
    """Options of `hookcli diff` alone."""

    panel = "Comparison"

    rtol: float | None = tolerance_option(
        "Relative tolerance, by norm [sqrt of the dtype's epsilon: 3.5e-4 for float32]."
    )
    atol: float | None = tolerance_option("Absolute tolerance, of the root mean square [0].")
    same_weights: bool = option(False, "Copy A's weights into B.")
    allow_settings: list[str] = option(
        list, "Settings that modules of two models may differ in: eps,p; '*' allows all.", metavar="NAMES"
    )
    backward: bool = option(False, "Compare gradients, too.", panel=GRADIENTS)
    isolate: bool = option(False, "Tell each module's own error, on A's input, from what it inherited.")
    float64: bool = option(True, "Skip the run in float64 that judges both sides where only precision differs.")


def example(typed: Sequence[str]) -> str:
    """A command that runs, for messages."""
    return example_of(typed, EXAMPLES[0])


def diff(
    ctx: typer.Context,
    a: Annotated[str, model_argument("A", _A)],
    b: Annotated[str | None, model_argument("B", _B)] = None,
    *,
    own: DiffOptions,
    step: OnePassOptions,
    options: Annotated[Options, OnlyFields(_SHARED)],
    timing: TimeOptions,
) -> int:
    """Compare two models, reports, records, dumps or files of weights.

    The models run in lockstep on one input; their modules' outputs, parameters and buffers are compared tensor by
    tensor. Options within the quotes apply to that model alone: those under Model and Run, --amp [DTYPE] to run it
    under autocast, --compile [BACKEND|MODE] (and --emulate-casts), --attention KERNEL (math, flash, efficient or
    cudnn), and --path DIR to import it from DIR. Options outside the quotes apply to both. Without B, a model with
    such options is compared with itself without them: hookcli diff 'resnet18 --amp'. Of two records from `hookcli
    run`: which run is better, in which settings they differ, the first step and module beyond tolerance, and what grew
    from there. A folder that --dump has written is compared tensor by tensor with another one, or with a model, which
    runs on the same inputs; so is what ONNX Runtime computes from an .onnx file, with the model it came from. Of two
    files or folders of weights (.safetensors, .gguf, .pt), all tensors are compared: which differ, which are renamed,
    and which changes are of low rank, as LoRA makes them. Exit code 1: a difference is beyond tolerance, or a module of
    two models has another setting that can change figures of this run (an eps, a stride; not Dropout's p in eval mode).
    """
    with ending_in_example(example((a,) if b is None else (a, b))):
        a, b = both_sides(a, b, options)
    _require_sides(a, b)
    allowed, of_models = words_of(own.allow_settings), _of_models(own, timing)
    not_models = {"records": is_record, "dumps": is_dump, "files of tensors": holds_tensors, ".onnx files": is_onnx}
    for what, named in not_models.items():
        if of_models and (named(a) or named(b)):
            raise UsageError(f"{of_models}: both sides must be models, not {what}")
    tolerance = Tolerance(own.rtol, own.atol, allowed)
    onnx = is_onnx(a) or is_onnx(b)
    if options.ops and onnx:
        raise UsageError("--ops: an .onnx file has no operators of PyTorch; leave it out", option="ops")
    if options.ops and any(is_record(side) or looks_saved(side) for side in (a, b)):
        raise UsageError("--ops: saved reports and records have operators if --ops measured them; leave it out")
    if is_record(a) or is_record(b):
        return compare_records(a, b, tolerance, narrowing(options), options)
    if onnx or is_dump(a) or is_dump(b):
        output = Output(options)
        output.check_columns(with_operators(DUMPED))
        with salvaging(output) as progress:
            from hookcli.commands.diff_dumps import DumpRuns
            from hookcli.commands.diff_onnx import OnnxRuns

            runs = OnnxRuns if onnx else DumpRuns
            report = runs(options, step, typed_names(ctx), tolerance, progress).compare(a, b)
        return _judged([report], output)
    if holds_tensors(a) and holds_tensors(b):
        for name in sorted(typed_names(ctx) & _RUNNING):
            raise UsageError(f"--{name.replace('_', '-')}: is for models; both sides are files of tensors")
        return compare_weights(a, b, tolerance, options)
    with ending_in_example(example((a, b))):
        sides = [parse_side(label, text, options) for label, text in (("A", a), ("B", b))]
    _check_gradients(own, step)
    if of_models and any(side.file for side in sides):
        raise UsageError(f"{of_models}: both sides must be models, not saved reports")
    return _compare_runs(sides, own, step, options, tolerance, timing.time)


def _require_sides(a: str, b: str) -> None:
    """Raise UsageError for a script, or a folder of Transformers without hf:, in place of a side."""
    for label, text in (("A", a), ("B", b)):
        if not (is_record(text) or holds_tensors(text) or is_onnx(text)) and (wrong := meant_by(text)):
            raise UsageError(f"{label}: {wrong}")


def _of_models(own: DiffOptions, timing: TimeOptions) -> str:
    """The first of the given options that are for models alone; "" if there is none."""
    switches = {
        "--same-weights": own.same_weights,
        "--backward": own.backward,
        "--time": timing.time,
        "--isolate": own.isolate,
        "--no-float64": not own.float64,
        "--allow-settings": own.allow_settings,
    }
    return next((name for name, on in switches.items() if on), "")


def _check_gradients(own: DiffOptions, step: StepOptions) -> None:
    """Raises UsageError for options that don't go with the forward pass, or with the backward pass."""
    of_loss = "--loss" if step.loss else "--backward-vector" if step.backward_vector else ""
    if of_loss and not own.backward:
        raise UsageError(f"{of_loss}: without --backward nothing is differentiated")
    if own.isolate and own.backward:
        raise UsageError("--isolate: is for the forward pass alone; leave --backward out")


def _compare_runs(
    sides: Sequence[SideSpec], own: DiffOptions, step: StepOptions, options: Options, tolerance: Tolerance, time: bool
) -> int:
    """Compare models and saved reports."""
    of_files = any(side.file for side in sides)
    output = Output(options)
    columns = DIFF if of_files else with_operators(TENSORS) if options.ops else TENSORS
    output.check_columns((*columns, *PRECISION, *SIDE_TIMES))
    with salvaging(output, torch=False) as progress:
        make_runs = partial(model_runs, options, progress, step, own.backward, time)
        if of_files:
            with ending_in_example(EXAMPLES[0]):
                left, right = reports_of_both(sides, options, make_runs)
            wanted = narrowing(options)(left, right)
            left, right = (require_rows(wanted, side, options) for side in (left, right))
            reports = diff_reports(left, right, tolerance)
        else:
            with ending_in_example(EXAMPLES[0]):
                runs = replace(make_runs(), float64=own.float64, isolate=own.isolate)
                pair = runs.pair(sides[0], sides[1], own.same_weights)
            report = runs.compare(pair, tolerance)
            reports = [next_compared(report, sides, own, step, options)]
    return _judged(reports, output)


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


_SENTENCES = ("settings", "structure", "weights", "times")  # another word


def _judged(reports: Sequence[Report], output: Output) -> int:
    """Write the comparison, and remark on what its format does not show. Returns 1 if the sides differ."""
    compared = any(report.totals["compared"] for report in reports)
    error = None if compared else UsageError("nothing to compare: the two sides have no module in common")
    output.write(reports, error=error)
    for report in reports:
        lines: list[str | None] = [unlike(report)]
        if not output.for_people:
            totals = report.totals
            counts = f"{totals['beyond']:,} of {totals['compared']:,} beyond tolerance"
            lines += [f"{totals['verdict']}; {counts}", *map(totals.get, _SENTENCES)]
        if (allow := advice(report.findings)) and not any(row.get("beyond") for row in report.rows):
            lines.append(f"exit code 1: settings differ ({allow} allows that)")
        for text in lines:
            remark(text, output.options)
    if error:
        raise error
    return int(beyond(reports))

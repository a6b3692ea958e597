"""hookcli diff"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from hookcli.commands.diff_files import example as example_of
from hookcli.commands.diff_kinds import EXAMPLE, Asked, DiffOptions, compare_as, kinds_of
from hookcli.commands.diff_runs import compare_models
from hookcli.commands.diff_sides import IN_QUOTES, both_sides
from hookcli.commands.mistakes import ending_in_example
from hookcli.commands.option_fields import OnlyFields, words_of
from hookcli.commands.options import DATA, RUNNING, SHOWING, Options, TimeOptions, model_argument
from hookcli.commands.run_options import OnePassOptions
from hookcli.commands.typer_classes import typed_names
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError
from hookcli.sources.misnamed import meant_by
from hookcli.table.columns.layouts import PRECISION, TENSORS

_SHARED = (*RUNNING, *DATA, "fastpath", "edit", "ops", "depth", "match", "type", *SHOWING)
EXAMPLES = (
    EXAMPLE,
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
FIRST = "rtol same_weights backward input weights match depth ops format output sort columns data"


def example(typed: Sequence[str]) -> str:
    """A command that runs, for messages."""
    return example_of(typed, EXAMPLE)


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
    tensor. Options within the quotes apply only to that model: those under Model and Run, --amp [DTYPE] to run it under
    autocast, --compile [BACKEND|MODE] (and --emulate-casts), --attention KERNEL (math, flash, efficient or cudnn), and
    --path DIR to import it from DIR. Options outside the quotes apply to both. Without B, a model with such options is
    compared with itself without them: hookcli diff 'resnet18 --amp'. For two records from `hookcli run`, shows which
    run is better, in which settings they differ, the first step and module beyond tolerance, and what grew from there.
    Compares a folder written by --dump tensor by tensor with another one, or with a model on the same inputs, and an
    .onnx file, run by ONNX Runtime, with the model it came from. For two files or folders of weights (.safetensors,
    .gguf, .pt), shows which tensors differ, which are renamed, and which changes are of low rank, like LoRA's. Exit
    code 1: a difference is beyond tolerance, or a setting changed that can affect figures of this run (an eps, a
    stride; not Dropout's p in eval mode).
    """
    with ending_in_example(example((a,) if b is None else (a, b))):
        a, b = both_sides(a, b, options)
    for label, text in (("A", a), ("B", b)):
        # a script, or a folder of Transformers without hf:
        if not kinds_of(text) and (wrong := meant_by(text, compared=True)):
            raise UsageError(f"{label}: {wrong}")
    kinds, of_models = kinds_of(a, b), own.for_models(timing.time)
    for kind in kinds:
        if of_models:
            raise UsageError(f"{of_models}: both sides must be models, not {kind.what}")
        if options.ops and kind.no_operators:
            raise UsageError(f"--ops: {kind.no_operators}", option="ops")
    tolerance = Tolerance(own.rtol, own.atol, words_of(own.allow_settings))
    asked = Asked(a, b, own, step, options, tolerance, typed_names(ctx))
    return compare_as(kinds[0], asked) if kinds else compare_models(asked, timing.time)

"""hookcli check"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hookcli.checks.base import Check
from hookcli.checks.selection import known_checks
from hookcli.commands.backward_options import loss_option
from hookcli.commands.check_config import make_jobs
from hookcli.commands.config import DEFAULT_FILE, read_config
from hookcli.commands.options import (
    DATA,
    CacheOptions,
    OnlyFields,
    Options,
    check_choice,
    choice,
    complete_models,
    option,
    tolerance_option,
)
from hookcli.commands.output import Output
from hookcli.commands.typer_classes import typed_names
from hookcli.errors import UsageError
from hookcli.hooks.option_values import MEMORY_OPTIMIZER, MEMORY_OPTIMIZERS
from hookcli.table import SEVERITIES, Report, Row
from hookcli.table.columns.layouts import CHECKS, FINDINGS
from hookcli.table.formatting import figure

EXAMPLES = (
    "hookcli check",
    "hookcli check resnet18 net.py:Net --input 8x3x64x64 --fail-on warning",
    "hookcli check resnet50 --expect-output '*x1000' --max-params 26M",
    "hookcli check net.py:Net --repeat 2 --split-batch --ignore HK007,HK01",
    "hookcli check net.py:Net --ops",
    "hookcli check net.py:Net --data train.py:loader --batches 50",
    "hookcli check resnet18 --save baseline.json",
    "hookcli check net.py:Net --against baseline.json --rtol 1e-3",
    "hookcli check --format github --report summary.md --report hookcli.sarif",
)
COLUMNS = FINDINGS
FIRST = (
    *("select", "ignore", "fail_on", "max_params", "save", "against", "meta", "list_checks"),
    *("weights", "input", "data", "format", "ops"),
)
_SHARED = (
    *("arg", "weights", "task", "strict", "seed", "input", "batch_size", "fill", "train", "device", "dtype", "threads"),
    *DATA,
    *("ops", "columns", "sort", "format", "output", "quiet", "debug"),
)
_CHECKS = "Checks"


@dataclass(frozen=True)
class CheckOptions(CacheOptions):
    """Options of `hookcli check` alone, as typed; those of each model also stand in the file that --config names."""

    select: list[str] = option(list, _CHECKS, "Run only these checks: ids, names or prefixes of ids.", metavar="ID,...")
    ignore: list[str] = option(list, _CHECKS, "Leave these checks out.", metavar="ID,...")
    threshold: list[str] = option(
        list, _CHECKS, "Change a threshold, for example HK012=1e-6; repeatable.", metavar="ID=FIGURE"
    )
    fail_on: str = choice("error", _CHECKS, "Lowest severity for exit code 1.", SEVERITIES)
    expect_output: list[str] = option(
        list, _CHECKS, "Expected output: *x1000, or out=*x21x224x224:float32; repeatable.", metavar="SHAPE"
    )
    max_params: str | None = option(None, _CHECKS, "Limit on parameters, for example 26M.", metavar="COUNT")
    max_macs: str | None = option(None, _CHECKS, "Limit on multiply-accumulates, for example 4.2G.", metavar="COUNT")
    max_activation_memory: str | None = option(
        None, _CHECKS, "Limit on memory kept for backward, for example 512MiB.", metavar="BYTES"
    )
    max_peak_memory: str | None = option(
        None, _CHECKS, "Limit on memory at the peak of a training step, for example 8GiB.", metavar="BYTES"
    )
    optimizer: str = option(MEMORY_OPTIMIZER, _CHECKS, "Optimizer of the step of --max-peak-memory.", metavar="NAME")
    repeat: int = option(1, _CHECKS, "Run N times and require bit-identical results.", metavar="N", min=1)
    split_batch: bool = option(False, _CHECKS, "Compare the batch with its two halves.", "--split-batch")
    backward: bool = option(True, _CHECKS, "Run forward only.", "--backward/--no-backward")
    save: str | None = option(None, _CHECKS, "Save a baseline of the models to FILE.", metavar="FILE")
    against: str | None = option(None, _CHECKS, "Compare with the baseline in FILE.", metavar="FILE")
    rtol: float | None = tolerance_option(_CHECKS, "Relative tolerance of statistics [3.5e-4 for float32].")
    atol: float | None = tolerance_option(_CHECKS, "Absolute tolerance of statistics [0].")
    meta: bool = option(False, _CHECKS, "Run on the meta device: only checks that need no values.", "--meta")
    config: str | None = option(
        None, _CHECKS, f"Read [tool.hookcli] from FILE [{DEFAULT_FILE}, if it has one].", metavar="FILE"
    )
    report: list[str] = option(list, "Output", "Also write the report to FILE; repeatable.", metavar="FILE")
    list_checks: bool = option(False, _CHECKS, "List all checks.", "--list")
    loss: str | None = loss_option()

    def settings(self) -> dict[str, Any]:
        """The options by the names that they have in [tool.hookcli]. Raises UsageError for a malformed --threshold."""
        words = {"select": _words(self.select), "ignore": _words(self.ignore)}
        return {**vars(self), **words, "thresholds": dict(map(_threshold, self.threshold))}


def check(
    ctx: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help=f"Models: torchvision, timm:, hf:, .pt2, file.py:fn [those of {DEFAULT_FILE}].",
            autocompletion=complete_models,
            show_default=False,
        ),
    ] = None,
    *,
    own: CheckOptions,
    options: Annotated[Options, OnlyFields(_SHARED)],
) -> int:
    """Check for NaN, dead units, vanishing gradients, float16 limits.

    Exit code 0: all checks passed; 1: a check found something; 2: a model could not run. The default is a batch of two
    in training mode. `hookcli explain HK012` explains a check. Options may also be set under [tool.hookcli] in
    pyproject.toml, by the same names.
    """
    check_choice("--fail-on", own.fail_on, SEVERITIES)
    check_choice("--optimizer", own.optimizer, MEMORY_OPTIMIZERS)
    if own.list_checks:
        return _list(Output(options))
    jobs = make_jobs(models or (), options, own.settings(), typed_names(ctx), read_config(own.config))
    from hookcli.commands.check_models import check_models

    return check_models(jobs, options, own.report)


def _words(given: list[str]) -> list[str]:
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def _threshold(text: str) -> tuple[str, str]:
    word, separator, number = text.partition("=")
    if not separator:
        raise UsageError(f"--threshold {text}: give ID=FIGURE, as in HK012=1e-6")
    return word.strip(), number


def _list(output: Output) -> int:
    rows = [_row(kind) for kind in known_checks()]
    output.check_columns(CHECKS)
    output.write([Report("checks", "hookcli", CHECKS, rows, totals={"checks": len(rows)})])
    return 0


def _row(kind: type[Check]) -> Row:
    limit = kind.threshold.default if kind.threshold else None
    values = (kind.id, kind.name, kind.severity, limit, kind.asked_by, kind.means)
    return Row({column.name: value for column, value in zip(CHECKS, values, strict=True)})


def threshold_text(kind: type[Check]) -> str:
    """The default threshold as people write it."""
    return figure(kind.threshold.default) if kind.threshold and kind.threshold.default is not None else "none"

"""hookcli check"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from hookcli.checks.selection import known_checks
from hookcli.commands.added_options import CHECK_OPTIONS, AddedOptions
from hookcli.commands.check_config import make_jobs
from hookcli.commands.config import DEFAULT_FILE, read_config
from hookcli.commands.option_fields import OnlyFields, choice, option, require_new, tolerance_option, words_of
from hookcli.commands.options import DATA, FILES, RUNNING, SHOWING, CacheOptions, LookOptions, Options, model_argument
from hookcli.commands.output import Output
from hookcli.commands.run_options import FurtherProbes, loss_option
from hookcli.commands.typer_classes import typed_names
from hookcli.errors import UsageError
from hookcli.registry.capability import capabilities
from hookcli.table import SEVERITIES, Report, Row
from hookcli.table.columns.layouts import CHECKS, FINDINGS

ELSEWHERE = {"--strict": "check has no --strict; with --fail-on warning, warnings exit with 1, too"}
EXAMPLES = (
    "hookcli check net.py:Net --input 8x1x28x28",
    "hookcli check",
    "hookcli check resnet18 net.py:Net --input 8x3x64x64 --fail-on warning",
    "hookcli check resnet50 --expect-output '*x1000' --max-params 26M",
    "hookcli check net.py:Net --repeat 2 --split-batch --ignore HK007,HK01",
    "hookcli check net.py:Net --ops",
    "hookcli check net.py:Net --compile",
    "hookcli check net.py:Net --data train.py:loader --batches 50",
    "hookcli check resnet18 --save baseline.json",
    "hookcli check net.py:Net --against baseline.json --rtol 1e-3",
    "hookcli check --format github --report summary.md --report hookcli.sarif",
)
COLUMNS = FINDINGS
FIRST = "select ignore fail_on input weights against save data format list_checks max_params meta ops batch_size output"
_SHARED = (*RUNNING, *DATA, "ops", *SHOWING)
_MODELS = f"Models: torchvision, timm:, hf:, {FILES}, file.py:fn [the models in {DEFAULT_FILE}]."


@dataclass(frozen=True)
class CheckOptions(AddedOptions, FurtherProbes, CacheOptions, LookOptions):
    """Options of `hookcli check` alone, as typed; each model's also stand in the file that --config names."""

    panel = "Checks"

    select: list[str] = option(list, "Run only these checks: ids, names or prefixes of ids.", metavar="ID,...")
    ignore: list[str] = option(list, "Leave these checks out.", metavar="ID,...")
    threshold: list[str] = option(list, "Change a threshold, for example HK012=1e-6; repeatable.", metavar="ID=FIGURE")
    fail_on: str = choice("error", "Lowest severity for exit code 1.", SEVERITIES)
    expect_output: list[str] = option(
        list, "Expected output: *x1000, or out=*x21x224x224:float32; repeatable.", metavar="SHAPE"
    )
    max_params: str | None = option(None, "Limit on parameters, for example 26M.", metavar="COUNT")
    max_macs: str | None = option(None, "Limit on multiply-accumulates, for example 4.2G.", metavar="COUNT")
    max_activation_memory: str | None = option(
        None, "Limit on memory kept for backward, for example 512MiB.", metavar="BYTES", seldom=True
    )
    max_graph_breaks: str | None = option(None, "Limit on graph breaks under --compile.", metavar="COUNT", seldom=True)
    repeat: int = option(1, "Run N times and require bit-identical results.", metavar="N", min=1)
    split_batch: bool = option(False, "Compare the batch with its two halves.")
    backward: bool = option(True, "Run forward only.")
    save: str | None = option(None, "Save a baseline of the models to FILE.", metavar="FILE")
    against: str | None = option(None, "Compare with the baseline in FILE.", metavar="FILE")
    rtol: float | None = tolerance_option("Relative tolerance of statistics [3.5e-4 for float32].", seldom=True)
    atol: float | None = tolerance_option("Absolute tolerance of statistics [0].", seldom=True)
    meta: bool = option(False, "Run on the meta device: only checks that need no values.")
    config: str | None = option(None, f"Read [tool.hookcli] from FILE [{DEFAULT_FILE}, if it has one].", metavar="FILE")
    report: list[str] = option(list, "Also write the report to FILE; repeatable.", metavar="FILE", panel="Output")
    list_checks: bool = option(False, "List all checks.", "--list")
    loss: str | None = loss_option()

    def settings(self) -> dict[str, Any]:
        """The options by the names that they have in [tool.hookcli]. Raises UsageError for a malformed --threshold."""
        for text in self.threshold:
            if "=" not in text:
                raise UsageError(f"--threshold {text}: give ID=FIGURE, as in HK012=1e-6")
        thresholds = {word.strip(): figure for word, _, figure in (text.partition("=") for text in self.threshold)}
        words = {name: words_of(vars(self)[name]) for name in ("select", "ignore")}
        return {**vars(self), **words, "thresholds": thresholds}


_ADDED = [
    *((one.name, one) for one in capabilities() if one.flag),
    *((each.name, one) for one, kind in CHECK_OPTIONS for each in fields(kind)),
]
require_new("check", CheckOptions, (AddedOptions, FurtherProbes), _ADDED, own=("models", *_SHARED))


def check(
    ctx: typer.Context,
    models: Annotated[list[str] | None, model_argument("MODEL", _MODELS)] = None,
    *,
    own: CheckOptions,
    options: Annotated[Options, OnlyFields(_SHARED)],
) -> int:
    """Check for NaN, dead units, vanishing gradients, float16 limits.

    Exit code 0: no error, at most warnings; 1: an error, or a warning with --fail-on warning; 2: a model could not run.
    By default it runs a batch of two in training mode. `hookcli explain HK012` explains a check. Options may also be
    set under [tool.hookcli] in pyproject.toml, by the same names.
    """
    if own.list_checks:
        return _list(Output(options))
    jobs = make_jobs(models or (), options, own.settings(), typed_names(ctx), read_config(own.config))
    from hookcli.commands.check_models import check_models

    return check_models(jobs, options, own.report)


def _list(output: Output) -> int:
    rows = []
    for kind in known_checks():
        limit = kind.threshold.default if kind.threshold else None
        values = (kind.id, kind.name, kind.severity, limit, kind.asked_by, kind.means)
        rows.append(Row({column.name: value for column, value in zip(CHECKS, values, strict=True)}))
    output.check_columns(CHECKS)
    output.write([Report("checks", "hookcli", CHECKS, rows, totals={"checks": len(rows)})])
    return 0

"""hookcli check"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hookcli.checks.base import Check
from hookcli.checks.selection import known_checks
from hookcli.commands.check_config import make_jobs
from hookcli.commands.config import DEFAULT_FILE, read_config
from hookcli.commands.differentiation import LossName
from hookcli.commands.options import DEFAULT_MODEL, Options, check_choice, complete_models
from hookcli.commands.output import Output
from hookcli.errors import UsageError
from hookcli.report import SEVERITIES, Column, Report, Row
from hookcli.report.formatting import figure

EXAMPLES = (
    "hookcli check",
    "hookcli check resnet18 net.py:Net --input 8x3x64x64 --fail-on warning",
    "hookcli check resnet50 --expect-output '*x1000' --max-params 26M",
    "hookcli check net.py:Net --repeat 2 --split-batch --ignore HK007,HK01",
    "hookcli check resnet18 --save baseline.json",
    "hookcli check net.py:Net --against baseline.json --rtol 1e-3",
    "hookcli check --format github --report summary.md --report hookcli.sarif",
)
OPTIONS = (
    *("arg", "weights", "strict", "seed", "input", "batch_size", "fill", "train", "device", "dtype", "threads"),
    *("columns", "sort", "format", "output", "quiet", "debug"),
)
_LIST_COLUMNS = (
    Column("check", "Check"),
    Column("name", "Name"),
    Column("severity", "Severity"),
    Column("threshold", "Threshold"),
    Column("asked_by", "Asked by"),
    Column("means", "Usually means"),
)
_CHECKS = "Checks"


def _option(text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_CHECKS, help=text, **settings)


def check(
    ctx: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help=f"Torchvision names, package.module:callable, or path/to/file.py:callable "
            f"[those of {DEFAULT_FILE}, else {DEFAULT_MODEL}].",
            autocompletion=complete_models,
            show_default=False,
        ),
    ] = None,
    *,
    # Typer wants a list for an option that is repeatable, and gives each call one of its own.
    select: Annotated[list[str], _option("Only these: ids, names or beginnings of ids.", metavar="ID,...")] = [],  # noqa: B006
    ignore: Annotated[list[str], _option("All but these.", metavar="ID,...")] = [],  # noqa: B006
    threshold: Annotated[
        list[str], _option("Compare with another figure, as in HK012=1e-6; repeatable.", metavar="ID=FIGURE")
    ] = [],  # noqa: B006
    fail_on: Annotated[
        str, typer.Option(metavar="error|warning", rich_help_panel=_CHECKS, help="What makes the exit code 1.")
    ] = "error",
    expect_output: Annotated[
        list[str], _option("What it must return: *x1000, or out=*x21x224x224:float32; repeatable.", metavar="SHAPE")
    ] = [],  # noqa: B006
    max_params: Annotated[str | None, _option("Most parameters allowed, as in 26M.", metavar="COUNT")] = None,
    max_macs: Annotated[str | None, _option("Most multiply-accumulates, as in 4.2G.", metavar="COUNT")] = None,
    max_activation_memory: Annotated[
        str | None, _option("Most memory kept for backward, as in 512MiB.", metavar="BYTES")
    ] = None,
    repeat: Annotated[int, _option("Run it so often, for bit-identical results.", metavar="N", min=1)] = 1,
    split_batch: Annotated[bool, _option("Compare with the batch in two halves.", "--split-batch")] = False,
    backward: Annotated[bool, _option("Whether to run backward, too.", "--backward/--no-backward")] = True,
    save: Annotated[str | None, _option("Write a baseline of the models there.", metavar="FILE")] = None,
    against: Annotated[str | None, _option("Compare with the baseline in FILE.", metavar="FILE")] = None,
    rtol: Annotated[
        float | None, _option("Relative tolerance of statistics [3.5e-4 for float32].", metavar="X", min=0)
    ] = None,
    atol: Annotated[float | None, _option("Absolute tolerance of statistics [0].", metavar="X", min=0)] = None,
    meta: Annotated[bool, _option("Only what needs no compute: on the meta device.", "--meta")] = False,
    config: Annotated[
        str | None, _option(f"Read [tool.hookcli] there [{DEFAULT_FILE}, if it has one].", metavar="FILE")
    ] = None,
    report: Annotated[
        list[str], typer.Option(metavar="FILE", rich_help_panel="Output", help="Write there, too; repeatable.")
    ] = [],  # noqa: B006
    list_checks: Annotated[bool, _option("Show all checks instead.", "--list")] = False,
    loss: LossName = None,
    options: Options,
) -> int:
    """Run models once, forward and backward, and judge what was seen.

    For CI: exit code 0 when all is well, 1 when a check found something, 2 when a model could not run. A batch of two
    in training mode unless told otherwise. `hookcli explain HK012` says more of a check. Settings may stand in
    [tool.hookcli] of pyproject.toml, by the names of these options.
    """
    check_choice("--fail-on", fail_on, SEVERITIES)
    if list_checks:
        return _list(Output(options))
    own = {
        "select": _words(select),
        "ignore": _words(ignore),
        "thresholds": dict(map(_threshold, threshold)),
        "fail_on": fail_on,
        "expect_output": expect_output,
        "max_params": max_params,
        "max_macs": max_macs,
        "max_activation_memory": max_activation_memory,
        "repeat": repeat,
        "split_batch": split_batch,
        "backward": backward,
        "save": save,
        "against": against,
        "rtol": rtol,
        "atol": atol,
        "meta": meta,
        "loss": loss,
    }
    typed = {name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    jobs = make_jobs(models or (), options, own, typed, read_config(config))
    from hookcli.commands.judging import check_models

    return check_models(jobs, options, report)


def _words(given: list[str]) -> list[str]:
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def _threshold(text: str) -> tuple[str, str]:
    word, separator, number = text.partition("=")
    if not separator:
        raise UsageError(f"--threshold {text}: give ID=FIGURE, as in HK012=1e-6")
    return word.strip(), number


def _list(output: Output) -> int:
    rows = [_row(kind) for kind in known_checks()]
    output.check_columns(_LIST_COLUMNS)
    output.write([Report("checks", "hookcli", _LIST_COLUMNS, rows, totals={"checks": len(rows)})])
    return 0


def _row(kind: type[Check]) -> Row:
    limit = kind.threshold.default if kind.threshold else None
    return Row(
        {
            "check": kind.id,
            "name": kind.name,
            "severity": kind.severity,
            "threshold": limit,
            "asked_by": kind.asked_by,
            "means": kind.means,
        }
    )


def threshold_text(kind: type[Check]) -> str:
    """The default threshold as people write it."""
    return figure(kind.threshold.default) if kind.threshold and kind.threshold.default is not None else "none"

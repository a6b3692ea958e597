"""hookcli report"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from hookcli.commands.added_options import ADDED_NAMES
from hookcli.commands.check import CheckOptions
from hookcli.commands.check_config import Job, make_jobs
from hookcli.commands.config import read_config
from hookcli.commands.diff_files import is_record
from hookcli.commands.diff_kinds import DiffOptions
from hookcli.commands.option_fields import OnlyFields, option
from hookcli.commands.options import DATA, DEFAULT_MODEL, RUNNING, Options, model_argument
from hookcli.commands.output import remark
from hookcli.commands.report_file import Page
from hookcli.commands.run_options import StepOptions
from hookcli.commands.typer_classes import typed_names
from hookcli.errors import UsageError
from hookcli.system.files import at_rest, is_pipe
from hookcli.table.files import looks_saved, read_reports, unfamiliar

EXAMPLES = (
    "hookcli report resnet50",
    "hookcli report net.py:Net --input 8x3x64x64 --output net.html",
    "hookcli report net.py:Net --eval --ignore HK012 --open",
    "hookcli report train.run.jsonl",
    "hookcli report train.run.jsonl --serve",
    "hookcli report activations.json",
    "hookcli report net.py:Net 'net.py:Net --path old' --output diff.html",
    "hookcli report before.run.jsonl after.run.jsonl",
    "hookcli report a.run.jsonl b.run.jsonl c.run.jsonl -o runs.html",
)
FIRST = "output open_page serve input weights batch_size train device select loss format data"
OF_CHECKS = (
    *("select", "ignore", "threshold", "expect_output", "backward", "against", "rtol", "atol"),
    *("max_params", "max_macs", "max_activation_memory", *ADDED_NAMES, "config", "loss"),
    *("compile", "emulate_casts"),
)
_TARGET = "A model, a record or a saved report; hookcli run writes records, --output FILE.json saves reports."
_OF_COMPARISONS = ("rtol", "atol", "backward", "loss")
_SHARED = (*RUNNING, *DATA, "ops", "edit", "format", "output", "quiet", "debug")


@dataclass(frozen=True)
class PageOptions:
    """Options of `hookcli report` alone."""

    panel = "Output"

    open_page: bool = option(False, "Open the page in a browser.", "--open")
    serve: bool = option(False, "Serve a record's page on this machine; it grows with the record.")
    port: int | None = option(None, "Port of --serve [a free one].", metavar="N", min=1, max=65535, seldom=True)


def report(
    ctx: typer.Context,
    target: Annotated[str, model_argument("MODEL", _TARGET, show_default=True)] = DEFAULT_MODEL,
    others: Annotated[
        list[str] | None,
        model_argument("[OTHER]...", "Another of these, to compare with the first; any number of records."),
    ] = None,
    *,
    own: PageOptions,
    compare: Annotated[DiffOptions, OnlyFields(("same_weights",))],
    checks: Annotated[CheckOptions, OnlyFields(OF_CHECKS)],
    options: Annotated[Options, OnlyFields(_SHARED)],
) -> int:
    """Write a page about a model: figures, distributions, checks.

    One HTML file to open, send and keep, which needs no network (`hookcli show` prints tables): shapes and memory,
    statistics of activations, gradients and parameters, and the checks' findings, of one run. By default it runs a
    batch of two in training mode, and writes a file named after the model to the working directory. Checks' options may
    also be set under [tool.hookcli] in pyproject.toml. Findings do not change the exit code, as they do in `hookcli
    check`. The page of a record shows every module at every recorded step. The page of two models, reports or records
    compares them as `hookcli diff` does, and shows the figures of both; quote a model with its options: 'resnet50
    --dtype bfloat16'. The page of more records has a row and a curve for each.
    """
    if own.serve or own.port is not None:
        if others and own.serve:
            raise UsageError(f"--serve: serves the page of one record; leave out {others[0]}")
        if others:
            raise UsageError("--port: is for --serve, which serves the page of one record; leave --port out")
        return _served(target, own, options)
    page = Page([target, *(others or ())], options, opens=own.open_page)
    if others:
        return _compared([target, *others], checks, compare, page, typed_names(ctx))
    if compare.same_weights:
        raise UsageError("--same-weights: name a second model, which gets the weights of the first")
    if is_record(target) or looks_saved(target):
        return _of_file(target, page)
    from hookcli.commands.report_pages import report_model

    return report_model(job_of(ctx, target, checks, page.options), page)


def job_of(ctx: typer.Context, target: str, checks: CheckOptions, options: Options) -> Job:
    """A model to measure, with the settings of its checks."""
    settings = checks.settings() | {"meta": options.device == "meta"}
    return make_jobs([target], options, settings, typed_names(ctx), read_config(checks.config))[0]


def _compared(
    sides: Sequence[str], checks: CheckOptions, compare: DiffOptions, page: Page, typed: Collection[str]
) -> int:
    a, b, *more = sides
    allowed = () if more else _OF_COMPARISONS
    if unused := [name for name in OF_CHECKS if name in typed and name not in allowed]:
        many = "several are" if more else "two are"
        raise UsageError(f"--{unused[0].replace('_', '-')}: no checks run where {many} compared; leave it out")
    if more:
        from hookcli.commands.show_runs import report_runs

        return report_runs(sides, page)
    from hookcli.commands.report_pages import report_sides

    own = replace(compare, rtol=checks.rtol, atol=checks.atol, backward=checks.backward)
    return report_sides(a, b, own, StepOptions(loss=checks.loss), page)


def _of_file(file: str, page: Page) -> int:
    """Write the page of a record, or of a saved report. Does not import torch."""
    with at_rest(Path(file)) as source:
        if is_record(str(source)):
            from hookcli.commands.report_pages import report_record

            return report_record(file, page, source)
        reports = read_reports(file, source)
    remark(unfamiliar(file, reports), page.options)
    page.write(reports)
    return 0


def _served(target: str, own: PageOptions, options: Options) -> int:
    if not own.serve:
        raise UsageError("--port: is for --serve; add that, or leave --port out")
    if options.output or options.format:
        raise UsageError("--serve: writes no file; leave out --output and --format")
    if not (is_record(target) or is_pipe(target)):
        raise UsageError(f"--serve {target}: is not a record of hookcli run; leave out --serve for the page of a model")
    from hookcli.commands.report_serve import serve_record

    return serve_record(target, own.port, options, opens=own.open_page)

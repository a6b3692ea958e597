"""The command `hookcli models`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

import typer

from hookcli.commands.options import ShowingOptions
from hookcli.commands.output import Output
from hookcli.errors import UsageError, unknown
from hookcli.report import Column, Report, Row, columns_named
from hookcli.sources.catalog import ModelEntry, entries, installed_version

EXAMPLES = ("hookcli models", "hookcli models 'resn*'", "hookcli models --sort -params --format csv")

COLUMNS = (Column("name", "Model"), *columns_named("kind", "params", "input"))


def models(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Part of a name, a glob, or a kind of model.")
    ] = "*",
    *,
    options: ShowingOptions,
) -> int:
    """List torchvision's models: parameters and default inputs.

    Parameter counts are those that torchvision publishes for its weights. Does not import torch.
    """
    output = Output(options)
    output.check_columns(COLUMNS)
    known = entries()
    if not known:
        raise UsageError("torchvision is not installed: pip install torchvision")
    glob = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    found = [e for e in known.values() if fnmatchcase(e.name, glob) or e.kind == pattern]
    if not found:
        raise UsageError(unknown("model", pattern, known, see="no name contains it"))
    rows = [Row({"name": e.name, "kind": e.kind, "params": e.params, "input": _input(e)}) for e in found]
    output.write([Report("models", f"torchvision {installed_version()}", COLUMNS, rows, totals={"models": len(rows)})])
    return 0


def _input(entry: ModelEntry) -> str:
    """Write the input as 1x3x224x224; two frames as 2 x 1x3x128x128; a detector's image as [3x320x320]."""
    size = "x".join(map(str, entry.inputs[0]))
    if entry.kind == "detection":
        return f"[{size}]"
    return size if len(entry.inputs) == 1 else f"{len(entry.inputs)} x {size}"

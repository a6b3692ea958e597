"""The command `hookcli models`."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from hookcli.commands.options import ShowingOptions, check_choice, choice
from hookcli.commands.output import Output
from hookcli.errors import UsageError, unknown
from hookcli.sources.catalog import LIBRARIES, installed_version, known_entries
from hookcli.sources.catalog.base import ModelEntry
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import MODELS

EXAMPLES = (
    *("hookcli models 'resn*'", "hookcli models --source timm 'vit*'", "hookcli models --source hf causal-lm"),
    "hookcli models --sort -params --format csv",
)

_HAS = {"torchvision": ("kind", "params", "input"), "timm": ("kind", "input", "weights"), "hf": ("tasks",)}
"""The columns that each source fills, beside the name."""


@dataclass(frozen=True)
class ModelsOptions:
    """The option of `hookcli models` alone."""

    source: str = choice("torchvision", None, "Library to list.", tuple(_HAS))


def models(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Part of a name, a glob, a kind of model or a task.")
    ] = "*",
    *,
    own: ModelsOptions,
    options: ShowingOptions,
) -> int:
    """List the models of torchvision, timm or Transformers.

    Parameter counts are those that torchvision publishes for its weights. The first of timm's weights is the default.
    Does not import torch.
    """
    check_choice("--source", own.source, tuple(_HAS))
    columns = tuple(column for column in MODELS if column.name in ("name", *_HAS[own.source]))
    output = Output(options)
    output.check_columns(columns)
    known = known_entries(own.source)
    glob = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    found = [e for e in known.values() if fnmatchcase(e.name, glob) or e.kind == pattern or pattern in (e.tasks or {})]
    if not found:
        raise UsageError(unknown("model", pattern, known, see="no name contains it"))
    rows = [Row({column.name: _value(e, column.name) for column in columns}) for e in found]
    library = f"{LIBRARIES[own.source]} {installed_version(own.source)}"
    output.write([Report("models", library, columns, rows, totals={"models": len(rows)})])
    return 0


def _value(entry: ModelEntry, column: str) -> Any:
    if column == "input":
        return _input(entry)
    value = getattr(entry, column)
    return list(value) if column in ("weights", "tasks") else value


def _input(entry: ModelEntry) -> str | None:
    """Write the input as 1x3x224x224; two frames as 2 x 1x3x128x128; a detector's image as [3x320x320]."""
    if not entry.inputs:
        return None
    size = "x".join(map(str, entry.inputs[0]))
    if entry.kind == "detection":
        return f"[{size}]"
    return size if len(entry.inputs) == 1 else f"{len(entry.inputs)} x {size}"

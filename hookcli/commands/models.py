"""The command `hookcli models`."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from shlex import quote
from typing import Annotated

import typer

from hookcli.commands.option_fields import choice
from hookcli.commands.options import ShowingOptions
from hookcli.commands.output import Output
from hookcli.errors import UsageError, shortened, unknown
from hookcli.sources.catalog import LIBRARIES, entries, installed_version, known_entries
from hookcli.sources.catalog.base import ModelEntry
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import MODELS

EXAMPLES = (
    *("hookcli models 'resn*'", "hookcli models --source timm 'vit*'", "hookcli models --source hf causal-lm"),
    "hookcli models --sort -params --format csv",
)
COLUMNS = MODELS

_HAS = {
    "torchvision": ("kind", "params", "input"),
    "timm": ("kind", "input", "weights"),  # another word
    "hf": ("tasks",),
}
"""The columns that each source fills, beside the name."""


@dataclass(frozen=True)
class ModelsOptions:
    """The option of `hookcli models` alone."""

    source: str = choice("torchvision", "Library to list.", tuple(_HAS))


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
    columns = tuple(column for column in MODELS if column.name in ("name", *_HAS[own.source]))
    output = Output(options)
    output.check_columns(columns)
    names = known_entries(own.source)
    glob = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    fits = _fitting(own.source, pattern, glob)
    if not fits:
        numbers = {name: len(_fitting(name, pattern, glob)) for name in _HAS}
        command = f"hookcli models {quote(pattern)} --source"
        lists = [f"`{command} {name}` lists {number}" for name, number in numbers.items() if number]
        if lists:
            raise UsageError(f"{LIBRARIES[own.source]} has no model {shortened(pattern)!r}; {', '.join(lists)}")
        raise UsageError(unknown("model", pattern, names, see="no name contains it"))
    rows = [Row({column.name: _value(e, column.name) for column in columns}) for e in fits]
    library = f"{LIBRARIES[own.source]} {installed_version(own.source)}"
    output.write([Report("models", library, columns, rows, totals={"models": len(rows)})])
    return 0


def _fitting(source: str, pattern: str, glob: str) -> list[ModelEntry]:
    """The models of a source whose name, kind or task the pattern gives."""
    models = entries(source).values()
    return [e for e in models if fnmatchcase(e.name, glob) or e.kind == pattern or pattern in (e.tasks or {})]


def _value(entry: ModelEntry, column: str) -> object:
    """The value of a column. An input is 1x3x224x224; two frames 2 x 1x3x128x128; a detector's image [3x320x320]."""
    if column != "input":
        value = getattr(entry, column)
        return list(value) if column in ("weights", "tasks") else value  # another word
    if not entry.inputs:
        return None
    size = "x".join(map(str, entry.inputs[0]))
    if entry.kind == "detection":
        return f"[{size}]"
    return size if len(entry.inputs) == 1 else f"{len(entry.inputs)} x {size}"

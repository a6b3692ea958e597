"""The command `hookcli package`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from hookcli.commands.option_fields import option
from hookcli.commands.options import DEFAULT_MODEL, SEVERAL, Options, all_but, model_argument
from hookcli.commands.probe_command import inspect_model
from hookcli.commands.typer_classes import TYPED
from hookcli.errors import UsageError
from hookcli.registry import load as load_plugin
from hookcli.table.columns.layouts import PACKAGE

EXAMPLES = (
    "hookcli package resnet50 --extern 'torchvision.**' --output resnet50.pt2pkg",
    "hookcli package net.py:Net --intern net --extern '**' --output net.pt2pkg",
    "hookcli package --load net.pt2pkg --trust",
)
COLUMNS = PACKAGE
_MODEL = f"A torchvision name, module:callable or file.py:callable [{DEFAULT_MODEL}]."
FIRST = "extern intern mock deny load trust weights columns format output"


@dataclass(frozen=True)
class PackageOptions:
    """Options of `hookcli package` only. Its --output names the package, not the report."""

    panel = "Package"

    extern: list[str] = option(list, "Modules to import on loading: 'torchvision.**', '*.io'.", metavar="GLOB")
    intern: list[str] = option(list, "Modules to put into the package as source.", metavar="GLOB")
    mock: list[str] = option(list, "Modules to replace by a stub.", metavar="GLOB")
    deny: list[str] = option(list, "Modules that must not be needed.", metavar="GLOB")
    load: str | None = option(None, "Run shapes on a package's model.", metavar="FILE")
    trust: bool = option(False, "With --load: run the code in the package.")
    resource: str | None = option(None, "With --load: model/model.pkl ...", metavar="NAME")
    output: str | None = option(
        None, "Write the package to FILE; with --load: the report.", short="-o", metavar="FILE", panel="Output"
    )


def package(
    ctx: typer.Context,
    model: Annotated[str | None, model_argument("MODEL", _MODEL)] = None,
    *,
    own: PackageOptions,
    options: Annotated[Options, all_but("output", "ops", "batches", *SEVERAL)],
) -> int:
    """Export a model with torch.package; show what becomes of modules.

    The first pattern that matches a module decides, in the order typed. torch and the standard library (except sys and
    io) are always extern. Modules that block the export are listed, with patterns that work.
    """
    if own.load is not None:
        patterns = [f"--{kind}" for kind in ("extern", "intern", "mock", "deny") if getattr(own, kind)]
        if model or patterns:
            raise UsageError(f"--load {own.load}: loads a package; leave out {'MODEL' if model else patterns[0]}")
        trust = ["trust=true"] if own.trust else []  # without it the source refuses to load
        resource = [f"resource={own.resource}"] if own.resource is not None else []
        options = replace(options, output=own.output, arg=[*options.arg, *trust, *resource])
        return inspect_model(f"package:{own.load}", load_plugin("probes", "shapes"), options)
    for name in ("trust", "resource", "depth", "match", "type"):
        if (vars(own) | vars(options))[name]:
            raise UsageError(f"--{name}: requires --load FILE, which runs a package's model")
    from hookcli.commands.package_export import export_model  # slow to import, and not needed for --help

    return export_model(model or DEFAULT_MODEL, ctx.meta[TYPED], own.output, options)

"""The command `hookcli package`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from hookcli.commands.options import DEFAULT_MODEL, SEVERAL, Options, all_but, complete_models, option
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
FIRST = (
    *("extern", "intern", "mock", "deny", "load", "trust"),
    *("weights", "columns", "format", "output"),
)
_PANEL = "Package"
_KINDS = ("extern", "intern", "mock", "deny")


@dataclass(frozen=True)
class PackageOptions:
    """Options of `hookcli package` only. Its --output names the package, not the report."""

    extern: list[str] = option(list, _PANEL, "Modules to import on loading: 'torchvision.**', '*.io'.", metavar="GLOB")
    intern: list[str] = option(list, _PANEL, "Modules to put into the package as source.", metavar="GLOB")
    mock: list[str] = option(list, _PANEL, "Modules to replace by a stub.", metavar="GLOB")
    deny: list[str] = option(list, _PANEL, "Modules that must not be needed.", metavar="GLOB")
    load: str | None = option(None, _PANEL, "Run shapes on a package's model.", metavar="FILE")
    trust: bool = option(False, _PANEL, "With --load: run the code in the package.", "--trust")
    resource: str | None = option(None, _PANEL, "With --load: model/model.pkl ...", metavar="NAME")
    output: str | None = option(
        None, "Output", "Write the package to FILE; with --load: the report.", "--output", "-o", metavar="FILE"
    )


def package(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help=f"A torchvision name, module:callable or file.py:callable [{DEFAULT_MODEL}].",
            autocompletion=complete_models,
            show_default=False,
        ),
    ] = None,
    *,
    own: PackageOptions,
    options: Annotated[Options, all_but("output", "ops", "batches", *SEVERAL)],
) -> int:
    """Export a model with torch.package; show what becomes of modules.

    The first pattern that matches a module decides, in the order typed. torch and the standard library (except sys and
    io) are always extern. Modules that block the export are listed, with patterns that work.
    """
    if own.load is not None:
        given = [f"--{kind}" for kind in _KINDS if getattr(own, kind)]
        if model or given:
            raise UsageError(f"--load {own.load}: loads a package; leave out {'MODEL' if model else given[0]}")
        return _loaded(own.load, own, replace(options, output=own.output))
    _refuse_others(options, own)
    from hookcli.commands.package_export import export_model  # slow to import, and not needed for --help

    return export_model(model or DEFAULT_MODEL, ctx.meta[TYPED], own.output, options)


def _loaded(file: str, own: PackageOptions, options: Options) -> int:
    """Run `hookcli shapes package:FILE`; the source refuses to load it without --trust."""
    named = [f"resource={own.resource}"] if own.resource is not None else []
    arguments = [*options.arg, *(["trust=true"] if own.trust else []), *named]
    return inspect_model(f"package:{file}", load_plugin("probes", "shapes"), replace(options, arg=arguments))


def _refuse_others(options: Options, own: PackageOptions) -> None:
    """Raise UsageError for options that have no effect on an export."""
    given = {"trust": own.trust, "resource": own.resource}
    for name, value in {**given, "depth": options.depth, "match": options.match, "type": options.type}.items():
        if value:
            raise UsageError(f"--{name}: requires --load FILE, which runs a package's model")

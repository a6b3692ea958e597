"""hookcli package"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Any

import typer

from hookcli.commands.common import inspect_model
from hookcli.commands.group import TYPED
from hookcli.commands.options import DEFAULT_MODEL, Options, complete_models
from hookcli.errors import UsageError
from hookcli.registry import load as load_plugin

EXAMPLES = (
    "hookcli package resnet50 --extern 'torchvision.**' --output resnet50.pt2pkg",
    "hookcli package net.py:Net --intern net --extern '**' --output net.pt2pkg",
    "hookcli package --load net.pt2pkg --trust",
)
_KINDS = ("extern", "intern", "mock", "deny")
OPTIONS = tuple(f.name for f in fields(Options) if f.name != "output")  # its --output is the package


def _pattern(text: str) -> Any:
    return typer.Option(metavar="GLOB", rich_help_panel="Package", help=text)


def package(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help=f"A torchvision name, package.module:callable, or path/to/file.py:callable [{DEFAULT_MODEL}].",
            autocompletion=complete_models,
            show_default=False,
        ),
    ] = None,
    *,
    # Typer wants a list for an option that is repeatable, and gives each call one of its own.
    extern: Annotated[list[str], _pattern("Modules to import where it is loaded: 'torchvision.**', '*.io'.")] = [],  # noqa: B006
    intern: Annotated[list[str], _pattern("Modules whose source goes into the package.")] = [],  # noqa: B006
    mock: Annotated[list[str], _pattern("Modules to put a stub in place of.")] = [],  # noqa: B006
    deny: Annotated[list[str], _pattern("Modules that must not be needed.")] = [],  # noqa: B006
    load: Annotated[
        str | None, typer.Option(metavar="FILE", rich_help_panel="Package", help="Run shapes on a package's model.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", rich_help_panel="Package", help="With --load: run the code in the package.")
    ] = False,
    resource: Annotated[
        str | None, typer.Option(metavar="NAME", rich_help_panel="Package", help="With --load: model/model.pkl ...")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            rich_help_panel="Output",
            help="Keep the package there; with --load: write the report there.",
        ),
    ] = None,
    options: Options,
) -> int:
    """Export a model with torch.package, and see which modules went which way.

    Of the patterns, the first that matches a module decides, in the order in which they are typed. torch and the
    standard library (but sys and io) are always extern. What blocks the export is listed, with patterns that let it
    pass.
    """
    if load is not None:
        given = [f"--{kind}" for kind, patterns in zip(_KINDS, (extern, intern, mock, deny), strict=True) if patterns]
        if model or given:
            raise UsageError(f"--load {load}: loads a package, and takes no {'MODEL' if model else given[0]}")
        return _loaded(load, trust, resource, replace(options, output=output))
    _refuse_others(options, trust, resource)
    from hookcli.commands.exporting import export_model  # help need not wait for zipfile and tempfile

    return export_model(model or DEFAULT_MODEL, ctx.meta[TYPED], output, options)


def _loaded(file: str, trust: bool, resource: str | None, options: Options) -> int:
    """What `hookcli shapes package:FILE` does; the source refuses without trust."""
    named = [f"resource={resource}"] if resource is not None else []
    arguments = [*options.arg, *(["trust=true"] if trust else []), *named]
    return inspect_model(f"package:{file}", load_plugin("probes", "shapes"), replace(options, arg=arguments))


def _refuse_others(options: Options, trust: bool, resource: str | None) -> None:
    """Options that would do nothing to an export."""
    given = {"trust": trust, "resource": resource, "depth": options.depth, "match": options.match, "type": options.type}
    for name, value in given.items():
        if value:
            raise UsageError(f"--{name}: only with --load FILE, which runs the model of a package")

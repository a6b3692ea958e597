"""`--hist LAYER`: the histogram of one layer, of the commands that show statistics of tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from hookcli.commands.options import HistOptions, Options
from hookcli.commands.typer_classes import TYPED
from hookcli.errors import UsageError

_OPTION = "--hist"

Layer = Annotated[str | None, typer.Argument(metavar="", hidden=True)]
"""A second argument: the word after `--hist`, which is a flag, or MODEL if that came after it."""


def requested(
    ctx: typer.Context, model: str, layer: str | None, own: HistOptions, options: Options
) -> tuple[str, Options]:
    """The model, and the options that draw the histogram of the layer of `--hist LAYER`, if one is given.

    A single word is the model, wherever it stands.
    Raises UsageError for a second word that does not follow `--hist`, and for a selection by other options.
    """
    if layer is None:
        return model, options
    typed = ctx.meta[TYPED]
    after = typed[typed.index(_OPTION) + 1] if own.hist and _OPTION in typed[:-1] else None
    if after not in (model, layer):
        raise UsageError(f"{layer!r}: a second MODEL; a layer's histogram is drawn by {_OPTION} {layer}")
    model, layer = (layer, model) if after == model else (model, layer)
    if options.match is not None or options.type is not None:
        raise UsageError(f"{_OPTION} {layer}: selects a layer; leave out {'--match' if options.match else '--type'}")
    form = options.format or (None if options.output else "hist")
    return model, replace(options, match=layer, format=form)

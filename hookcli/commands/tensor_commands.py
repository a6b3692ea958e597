"""The options of commands that show statistics of tensors: `--dump DIR`, the tensors themselves, and `--hist LAYER`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hookcli.checks.selection import parse_figure
from hookcli.commands.destination import check_target
from hookcli.commands.option_fields import option
from hookcli.commands.options import DATA, GENERATED, OUTPUT, Options
from hookcli.commands.output import remark
from hookcli.commands.probe_command import RunOptions, inspect_model
from hookcli.commands.run_options import StepOptions
from hookcli.commands.typer_classes import TYPED
from hookcli.errors import UsageError
from hookcli.sources.misnamed import meant_by
from hookcli.system.files import is_file, is_folder
from hookcli.system.torchrun import world
from hookcli.table.dump import Dump, is_dump
from hookcli.table.formatting import counted, size

if TYPE_CHECKING:
    from hookcli.probes.base import Probe
    from hookcli.tensors.files.dump_writer import DumpWriter

REPEATED = (*GENERATED, *DATA, "seed", "fastpath", "ops", "loss", "backward_vector", "passes")
"""The options that a run must have in common with the run of a dump to be compared with it."""


@dataclass(frozen=True)
class TensorOptions:
    """Options of commands that show statistics of tensors."""

    panel = OUTPUT

    hist: bool = option(False, "Add quantiles; with a LAYER, draw its histogram.", panel="Display")
    dump: str | None = option(
        None, "Also write the tensors to the folder DIR, as safetensors files; see `diff`.", metavar="DIR"
    )
    max_bytes: str = option("10GB", "Limit on the size of the dump.", metavar="BYTES", seldom=True)


def inspect_tensors(
    ctx: typer.Context,
    model: str,
    layer: str | None,
    probe: Callable[..., Probe],
    own: TensorOptions,
    options: Options,
    how: RunOptions,
) -> int:
    """Run a probe that sees tensors; write its report, and the dump if asked for."""
    model, options = _requested(ctx, model, layer, own, options)
    if own.dump is None and own.max_bytes != TensorOptions.max_bytes:
        raise UsageError(f"--max-bytes {own.max_bytes}: limits a dump; add --dump DIR", option="max-bytes")
    sink = _writer(own.dump, own.max_bytes, options, how.step) if own.dump is not None else None
    try:
        return inspect_model(model, partial(probe, hist=own.hist, sink=sink), options, how)
    finally:
        if sink and sink.rows:
            remark(_written(sink, own.max_bytes), options)


def _writer(dump: str, most: str, options: Options, step: StepOptions) -> DumpWriter:
    """The writer of the dump. Raises UsageError for options that don't fit."""
    limit = parse_figure(most, "bytes")
    if limit is None or limit < 0:
        raise UsageError(f"--max-bytes {most}: give a number of bytes, such as 500MB or 2GiB", option="max-bytes")
    if max(options.nproc or 1, world().size) > 1:
        raise UsageError("--dump: writes the tensors of one process; remove --nproc")
    if find_spec("safetensors") is None:
        raise UsageError("--dump: needs safetensors: pip install 'hookcli[safetensors]'")
    folder = Path(dump)
    check_target(folder, "--dump", "folder")
    if is_folder(folder) and not is_dump(dump) and any(folder.iterdir()):
        raise UsageError(f"--dump {folder}: is not empty, and no dump; name another folder")
    from hookcli.tensors.files.dump_writer import DumpWriter, is_own

    if not is_own(folder) and is_folder(folder):
        raise UsageError(f"--dump {folder}: holds files that --dump has not written; name another folder")
    asked, plain = vars(options) | vars(step), vars(Options()) | vars(StepOptions())
    repeated = {name: asked[name] for name in REPEATED if asked[name] != plain[name]}
    narrowed = options.match is not None or options.type is not None
    return DumpWriter(folder, int(limit), Dump("", (), options=repeated, narrowed=narrowed))


def _written(sink: DumpWriter, limit: str) -> str:
    held = sum(bool(row["file"]) for row in sink.rows)
    over = sum(row.get("reason") == sink.LEFT_OUT for row in sink.rows)
    other = len(sink.rows) - held - over
    parts = [f"wrote {sink.folder}: {counted(held, 'tensor')}, {size(sink.written)}"]
    parts += [f"{counted(over, 'tensor')} left out (--max-bytes {limit})"] if over else []
    parts += [f"{counted(other, 'tensor')} of a layout that can't be written"] if other else []
    return "; ".join(parts)


_OPTION = "--hist"

Layer = Annotated[str | None, typer.Argument(metavar="", hidden=True)]
"""A second argument: the word after `--hist`, which is a flag, or MODEL if that came after it."""


def _requested(
    ctx: typer.Context, model: str, layer: str | None, own: TensorOptions, options: Options
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
        wrong = meant_by(layer) if is_file(layer) else ""
        raise UsageError(wrong or f"{layer!r}: a second MODEL; a layer's histogram is drawn by {_OPTION} {layer}")
    model, layer = (layer, model) if after == model else (model, layer)
    if options.match is not None or options.type is not None:
        raise UsageError(f"{_OPTION} {layer}: selects a layer; leave out {'--match' if options.match else '--type'}")
    form = options.format or (None if options.output else "hist")
    return model, replace(options, match=layer, format=form)

"""The command `hookcli weights`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from hookcli.commands.options import SHOWING, OnlyFields, Options, complete_models, option
from hookcli.commands.output import Output, remark
from hookcli.commands.progress import Progress, working
from hookcli.commands.reading import Position, matching
from hookcli.commands.recipe import find_recipe
from hookcli.engine.weights_report import Wanted, WeightsReport
from hookcli.errors import HookcliError, UsageError
from hookcli.system.files import exists
from hookcli.table import Report
from hookcli.table.columns import find_column
from hookcli.table.columns.layouts import SPECTRAL, WEIGHTS
from hookcli.tensors.files.opening import SUFFIXES, holds_tensors, open_tensors
from hookcli.tensors.files.stored import StoredTensor

EXAMPLES = (
    "hookcli weights model.safetensors",
    "hookcli weights llama.gguf --no-stats",
    "hookcli weights checkpoint/ --sort -outside_float16",
    "hookcli weights model.safetensors --match 'layers.0.*' --spectral",
    "hookcli weights net.py:Net --weights new.pt --depth 1",
)
COLUMNS = WEIGHTS
_BUILDING = ("arg", "weights", "task", "strict", "seed")
_PANEL = "Measurements"


@dataclass(frozen=True)
class WeightsOptions:
    """Options of `hookcli weights` alone."""

    stats: bool = option(True, _PANEL, "Show only names, shapes, dtypes and bytes, from headers.", "--stats/--no-stats")
    spectral: bool = option(
        False, _PANEL, "Add the largest singular value and the stable rank of matrices.", "--spectral"
    )


def weights(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|MODEL",
            help="Files or folders of tensors (.safetensors, .gguf, .pt, .bin), or models.",
            show_default=False,
            autocompletion=complete_models,
        ),
    ],
    *,
    own: WeightsOptions,
    options: Annotated[Options, OnlyFields((*_BUILDING, "depth", "match", *SHOWING))],
) -> int:
    """Show the tensors of files, or parameters and buffers of models.

    Shows shapes, dtypes, bytes, statistics, and the shares of elements outside the range of narrower formats. Files are
    read block by block, in bounded memory; safetensors and GGUF files without torch. A folder is read by the index of
    its shards, or whole. If a checkpoint has a state dict, only that is shown. GGUF's quantized types are dequantized
    (pip install 'hookcli[gguf]').
    """
    output = Output(options)
    wanted = Wanted(_asks_for_values(own, options), own.spectral)
    columns = {model: wanted.columns(model=model) for model in (not holds_tensors(text) for text in what)}
    for some in columns.values():
        output.check_columns(some)
    reports: list[Report] = []
    with working(options) as progress:
        for text in what:
            found = _opened(text, columns, wanted, options, progress)
            try:
                found.measure(wanted, Position(progress, found.tensors))
            except (HookcliError, KeyboardInterrupt):
                output.salvage([*reports, found.report])
                raise
            reports.append(found.report)
    output.write(reports)
    return 0


def _asks_for_values(own: WeightsOptions, options: Options) -> bool:
    """True unless the command line says that what headers tell is enough, by --no-stats or by the columns it names."""
    if not own.stats or not options.columns:
        return own.stats
    given = [name.strip() for name in options.columns.split(",")] + [(options.sort or "").removeprefix("-")]
    header = {column.name for column in (*Wanted(stats=False).columns(model=True), *Wanted(False).columns(model=False))}
    named = {find_column("--columns", name, WEIGHTS).name for name in filter(None, given)}
    return not named <= header | {column.name for column in SPECTRAL}


def _opened(text: str, columns: Any, wanted: Wanted, options: Options, progress: Progress) -> WeightsReport:
    """The report of a file, folder or model before its tensors are measured."""
    if not holds_tensors(text):
        if exists(text):
            known = ", ".join(SUFFIXES)
            raise UsageError(f"{text}: holds no tensors ({known}); a model of a file is FILE.py:CALLABLE")
        progress.stage("importing torch")
        name, tensors, meta = _of_model(text, wanted, options, progress)
        return WeightsReport(name, matching(tensors, options.match), meta, columns[True])
    for name in _BUILDING:
        if getattr(options, name) != getattr(Options(), name):
            raise UsageError(f"--{name if name != 'strict' else 'no-strict'}: {text} is a file of tensors, not a model")
    progress.stage(f"opening {text}")
    file = open_tensors(text)
    meta = {"format": file.format, **({"notes": list(file.notes)} if file.notes else {}), "metadata": file.metadata}
    kept = columns[False] if len({t.file for t in file.tensors}) > 1 else _without(columns[False], "file")
    return WeightsReport(text, matching(file.tensors, options.match), meta, kept)


def _without(columns: Any, name: str) -> list[Any]:
    return [column for column in columns if column.name != name]


def _of_model(
    spec: str, wanted: Wanted, options: Options, progress: Progress
) -> tuple[str, list[StoredTensor], dict[str, Any]]:
    """The name, the parameters and buffers, and the description of a model."""
    import torch

    from hookcli.engine.model_weights import parameters_and_buffers
    from hookcli.engine.prepare import build
    from hookcli.engine.run_info import RunInfo, torchvision_version
    from hookcli.engine.setting import META, Setting

    recipe = find_recipe(spec, options)
    progress.stage(f"building {recipe.name}")
    setting = Setting(seed=options.seed, weights=options.weights, strict=options.strict)
    if not (wanted.stats or wanted.spectral):
        setting = replace(setting, device=META)
    model, said = build(recipe, setting)
    if said:
        remark(said, options)
    info = RunInfo(torch=torch.__version__, seed=options.seed, source=recipe.meta, torchvision=torchvision_version())
    return recipe.name, list(parameters_and_buffers(model)), info.to_meta()

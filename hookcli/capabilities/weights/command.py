"""The command `hookcli weights`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from hookcli.capabilities.weights.layout import SPECTRAL, WEIGHTS
from hookcli.capabilities.weights.report import Wanted, WeightsReport, parameters_and_buffers
from hookcli.commands.mistakes import ending_in_example
from hookcli.commands.model import built_model, matching
from hookcli.commands.option_fields import OnlyFields, option, words_of
from hookcli.commands.options import BUILDING, SHOWING, Options, model_argument
from hookcli.commands.output import Output
from hookcli.commands.progress import Position, Progress, working
from hookcli.errors import HookcliError, UsageError
from hookcli.registry.capability import file_source
from hookcli.system.escaping import shell_path
from hookcli.system.files import exists
from hookcli.table import Report
from hookcli.table.columns import find_column
from hookcli.table.meta import Meta, with_notes
from hookcli.tensors.files.file_kinds import kind_of
from hookcli.tensors.files.opening import SUFFIXES, holds_tensors, open_tensors

EXAMPLES = (
    "hookcli weights resnet18",
    "hookcli weights model.safetensors",
    "hookcli weights llama.gguf --no-stats",
    "hookcli weights checkpoint/ --sort -outside_float16",
    "hookcli weights model.safetensors --match 'layers.0.*' --spectral",
    "hookcli weights net.py:Net --weights new.pt --depth 1",
)
COLUMNS = WEIGHTS
_WHAT = "Files, folders or models; files: .safetensors, .gguf, .pt, .bin."


def example(typed: Sequence[str]) -> str:
    """A command that runs, for messages."""
    from hookcli.commands.diff_files import is_record

    return next((f"hookcli show {shell_path(text)}" for text in typed if is_record(text)), EXAMPLES[0])


@dataclass(frozen=True)
class WeightsOptions:
    """Options of `hookcli weights` alone."""

    panel = "Measurements"

    stats: bool = option(True, "Show only names, shapes, dtypes and bytes, from headers.")
    spectral: bool = option(False, "Add the largest singular value and the stable rank of matrices.")


def weights(
    what: Annotated[list[str], model_argument("FILE|MODEL", _WHAT)],
    *,
    own: WeightsOptions,
    options: Annotated[Options, OnlyFields((*BUILDING, "depth", "match", *SHOWING))],
) -> int:
    """Show the tensors of files, or parameters and buffers of models.

    Shows shapes, dtypes, bytes, statistics, and the shares of elements outside the range of narrower formats. Files are
    read block by block, in bounded memory; safetensors and GGUF files without torch. A folder is read by the index of
    its shards, or whole. If a checkpoint has a state dict, only that is shown. GGUF's quantized types are dequantized
    (pip install 'hookcli[gguf]'). Statistics of complex tensors are taken over the modulus.
    """
    output = Output(options)
    stats = own.stats
    if stats and options.columns:  # for some columns what headers tell is enough
        chosen = [*words_of([options.columns]), *filter(None, [(options.sort or "").removeprefix("-")])]
        header = {column.name for model in (True, False) for column in Wanted(stats=False).columns(model=model)}
        named = {find_column("--columns", name, WEIGHTS).name for name in chosen}
        stats = not named <= header | {column.name for column in SPECTRAL}
    wanted = Wanted(stats, own.spectral)
    columns = {model: wanted.columns(model=model) for model in (not holds_tensors(text) for text in what)}
    for some in columns.values():
        output.check_columns(some)
    reports: list[Report] = []
    with working(options, torch=False) as progress:
        for text in what:
            with ending_in_example(example([text])):
                weights = _opened(text, columns, wanted, options, progress)
            try:
                weights.measure(wanted, Position(progress, weights.tensors))
            except (HookcliError, KeyboardInterrupt):
                output.salvage([*reports, weights.report])
                raise
            reports.append(weights.report)
    output.write(reports)
    return 0


def _opened(text: str, columns: Any, wanted: Wanted, options: Options, progress: Progress) -> WeightsReport:
    """The report of a file, folder or model before its tensors are measured."""
    if not holds_tensors(text):
        if exists(text) and not file_source(text):
            if kind := kind_of(text):
                raise UsageError(f"{text} is {kind}")
            suffixes = ", ".join(SUFFIXES)
            raise UsageError(f"{text}: holds no tensors ({suffixes}); a model of a file is FILE.py:CALLABLE")
        progress.stage("importing torch")
        from hookcli.engine.run_info import finished

        name, model, info = built_model(text, options, progress, meta=not (wanted.stats or wanted.spectral))
        tensors = list(parameters_and_buffers(model))
        return WeightsReport(name, matching(tensors, options.match), finished(info), columns[True])
    for name in BUILDING:
        if getattr(options, name) != getattr(Options(), name):
            raise UsageError(f"--{name if name != 'strict' else 'no-strict'}: {text} is a file of tensors, not a model")
    progress.stage(f"opening {text}")
    file = open_tensors(text)
    meta: Meta = {**with_notes({"format": file.format}, *file.notes), "metadata": file.metadata}
    several = len({tensor.file for tensor in file.tensors}) > 1
    tells_kinds = any(tensor.kind for tensor in file.tensors)
    filled = [c for c in (wanted.columns(model=True) if tells_kinds else columns[False]) if several or c.name != "file"]
    return WeightsReport(text, matching(file.tensors, options.match), meta, filled)

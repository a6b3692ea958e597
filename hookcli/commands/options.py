"""The arguments and options that commands share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from hookcli.commands.option_fields import OnlyFields, choice, option
from hookcli.hooks.option_values import BACKENDS, FILLS, PARALLEL
from hookcli.registry.capability import file_sources

DEFAULT_MODEL = "resnet50"


def complete_models(incomplete: str) -> list[str]:
    """The models whose specs begin as typed: torchvision's names, `timm:`, `hf:`, and what a file.py may define."""
    from hookcli.sources.catalog import LIBRARIES, entries

    prefix, separator, name = incomplete.partition(":")
    if separator and prefix.endswith(".py"):
        from hookcli.sources.module_code import code_of

        code = code_of(prefix)
        return [spec for spec in (code.names if code else []) if spec.startswith(incomplete)]
    if separator and prefix in LIBRARIES:
        return [f"{prefix}:{entry}" for entry in entries(prefix) if entry.startswith(name)]
    prefixes = [f"{source}:" for source in LIBRARIES if source != "torchvision"]
    return [name for name in (*entries(), *prefixes) if name.startswith(incomplete)]


def complete_formats(incomplete: str) -> list[str]:
    """The formats whose names begin as typed, including other distributions'."""
    from hookcli.registry import names

    return [name for name in names("reporters") if name.startswith(incomplete)]


def complete_columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """The command's columns whose names begin as typed after the last comma."""
    details: Any = getattr(ctx.command, "details", None)
    before, comma, name = incomplete.rpartition(",")
    names = [column.name for column in details.columns] if details else []
    return [f"{before}{comma}{column}" for column in names if column.startswith(name)]


def model_argument(metavar: str, text: str, *, show_default: bool = False) -> object:
    """An argument that takes models, among others; a shell completes their names."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete_models, show_default=show_default)


FILES = ", ".join((".pt2", *file_sources()))
"""The suffixes of files that are models."""
_MODEL = f"A torchvision name, timm:, hf:, {FILES}, file.py:fn."
Model = Annotated[str, model_argument("MODEL", _MODEL, show_default=True)]


GRADIENTS = "Gradients"
OUTPUT = "Output"
_BATCH = "First dimension of each input [1; with gradients: 2]."
_DEPTH = "Group or hide deeper rows [fits a screen; files: all]."
_EDIT = (
    "Change a value in the run, for example 'layer1:output=scale(2)'; repeatable. WHAT: input, output, grad_output, "
    "grad_input, grad. OP: zero, mean, ones, scale(2), clamp(-1,1), noise(0.1), square, from(DUMP), pkg.mod:fn."
)


# The groups are only ever parts of `Options`; their own methods would take 3 ms of each start.
@dataclass(frozen=True, init=False, repr=False, eq=False)
class _Building:
    """The options that choose a model and its weights."""

    panel = "Model"

    arg: list[str] = option(list, "Argument for the model's callable; repeatable.", metavar="KEY=VALUE")
    weights: str | None = option(None, "Weights: a file, a folder, or a published name.", metavar="FILE")
    task: str | None = option(
        None, "Task of an hf: model, as in causal-lm [the config's].", metavar="TASK", seldom=True
    )
    # Off alone has a name: --strict would read as a stricter judgement of findings.
    strict: bool = option(
        True, "Load what fits where weights do not fit the model exactly.", " /--no-strict", seldom=True
    )
    seed: int = option(0, "Seed of random weights and inputs.", metavar="N", min=0, max=2**63 - 1, seldom=True)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class _Generated:
    """The options of generated input."""

    panel = "Input"

    input: list[str] = option(list, "Shape, once per input: 8x3x224x224, 2x128:int64.", short="-i", metavar="SHAPE")
    batch_size: int | None = option(None, _BATCH, short="-b", metavar="N", min=1, max=2**31 - 1)
    fill: str = option("randn", "Values of generated inputs.", metavar="|".join(FILLS), seldom=True)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class _Data:
    """The options of real input."""

    panel = "Input"

    image: list[str] = option(list, "Real input: a picture, or a folder of them; repeatable.", metavar="FILE|FOLDER")
    text: list[str] = option(list, "Real input: a text, or a file of lines; repeatable.", metavar="TEXT|FILE")
    tokenizer: str | None = option(None, "Tokenizer for --text [the model's].", metavar="FOLDER", seldom=True)
    input_file: list[str] = option(
        list, "Real input: .npy, .npz, .pt, .safetensors; repeatable, or by KEYWORD=FILE.", metavar="FILE"
    )
    data: str | None = option(None, "Real input: an iterable of batches; file.py:name.", metavar="MODULE:NAME")
    batches: str = option("1", "Batches of real input to run; their statistics are merged.", metavar="N|all")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class _Running:
    """The options of a run."""

    panel = "Run"

    train: bool | None = option(
        None, "Mode of the model [eval; with gradients: train].", "--train/--eval", show_default=False
    )
    device: str = option("cpu", "cpu, cuda, cuda:1, mps or meta.", metavar="DEVICE")
    dtype: str | None = option(None, "dtype of model and inputs, such as bfloat16 [the model's].", metavar="DTYPE")
    threads: int | None = option(None, "CPU threads [PyTorch's choice].", metavar="N", min=1, max=2**16, seldom=True)
    fastpath: bool = option(True, "Show the parts of attention: no fused path in eval mode.", seldom=True)
    edit: list[str] = option(list, _EDIT, metavar="PATTERN:WHAT=OP")
    ops: str | None = option(None, "Add rows for operators: F.relu, x + y (aten: ATen's).", metavar="[aten]")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class _Several:
    """The options of a run in several processes."""

    panel = "Several processes"

    nproc: int | None = option(None, "Split the batch among N processes.", metavar="N", min=1, max=256)
    parallel: str = choice(
        "ddp", "For gradients: a replica in each process, or parameters sharded by fully_shard.", PARALLEL, seldom=True
    )
    ranks: str = option(
        "merged", "Merge the ranks' statistics, or show ranks side by side.", metavar="merged|each|0,1", seldom=True
    )
    backend: str | None = choice(None, "Backend of torch.distributed [nccl on GPUs, else gloo].", BACKENDS, seldom=True)
    timeout: float = option(
        300, "Time limit for each stage of the run.", metavar="SECONDS", min=1, max=86400, seldom=True
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class _Display:
    """The options that choose what of a report is shown."""

    panel = "Display"

    depth: str | None = option(None, _DEPTH, metavar="N|all")
    match: str | None = option(None, "Only one name, a glob, or a part of names.", metavar="PATTERN", blank=True)
    type: str | None = option(None, "Only modules of this class, for example Conv2d.", metavar="CLASS")
    columns: str | None = option(
        None, "Only these columns, in this order.", metavar="A,B", autocompletion=complete_columns
    )
    sort: str | None = option(
        None, "Sort by this column; -COLUMN: largest first.", metavar="COLUMN", autocompletion=complete_columns
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class _Output:
    """The options of what is written, and where."""

    panel = OUTPUT

    # The command's help lists its formats; see typer_classes.
    format: str | None = option(None, None, short="-f", metavar="NAME", autocompletion=complete_formats)
    output: str | None = option(None, "Write to FILE; its suffix selects the format.", short="-o", metavar="FILE")
    quiet: bool = option(False, "No progress or remarks on stderr.", short="-q", seldom=True)
    debug: bool = option(False, "Show full tracebacks of errors.", seldom=True)


@dataclass(frozen=True)
class Options(_Output, _Display, _Several, _Running, _Data, _Generated, _Building):
    """The shared options, as typed; help lists the groups from the last to the first."""


@dataclass(frozen=True)
class TimeOptions:
    """The option of commands whose rows are calls of modules."""

    panel = "Run"

    time: bool = option(False, "Time each module, in further passes without other hooks.")


@dataclass(frozen=True)
class CompileOptions:
    """The option of commands that run a model under torch.compile."""

    panel = "Run"

    compile: str | None = option(
        None, "Compile the model: a backend, or a mode of torch.compile [inductor].", metavar="[BACKEND|MODE]"
    )


@dataclass(frozen=True)
class LookOptions(CompileOptions):
    """The options of commands that see modules inside the compiled model."""

    emulate_casts: bool = option(False, "With inductor: round inside fused kernels as eager mode does.", seldom=True)


@dataclass(frozen=True)
class CacheOptions:
    """The option of commands whose reports are cached."""

    panel = "Run"

    cache: bool = option(True, "Neither read nor write the cache of reports.", show_default=False, seldom=True)


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


SHARED = frozenset(_names(Options))
SEVERAL, DATA, BUILDING, GENERATED = map(_names, (_Several, _Data, _Building, _Generated))
RUNNING = (*BUILDING, *GENERATED, "train", "device", "dtype", "threads")
"""The options of a run in one process, without the options of real input."""
SHOWING = ("columns", "sort", *_names(_Output))
"""The options of a command that shows a table."""


def all_but(*names: str) -> OnlyFields:
    """All shared options but these."""
    return OnlyFields(f.name for f in fields(Options) if f.name not in names)


ShowingOptions = Annotated[Options, OnlyFields(SHOWING)]
"""The options of commands that show a table without running a model."""
BuildingOptions = Annotated[Options, OnlyFields((*BUILDING, "match", "type", *SHOWING))]
"""The options of commands that build a model without running it."""
OneBatchOptions = Annotated[Options, all_but("batches", "ops")]
"""The options of commands whose rows do not merge over batches."""

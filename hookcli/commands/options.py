"""The options that commands share, and the decorator that makes parameters of a dataclass of options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import typer

from hookcli.errors import UsageError, unknown
from hookcli.hooks.option_values import BACKENDS, FILLS, PARALLEL

T = TypeVar("T")

DEFAULT_MODEL = "resnet50"
MOST_RUNS = 10**6
"""The greatest number of passes, steps or repetitions: hours of work, which a slip of the keyboard should not begin."""
GREATEST_TOLERANCE = 1e9
"""For --rtol and --atol."""


def complete_models(incomplete: str) -> list[str]:
    """The models whose specs begin as typed: torchvision's names, `timm:` and `hf:`."""
    from hookcli.sources.catalog import LIBRARIES, entries

    prefix, separator, name = incomplete.partition(":")
    if separator and prefix in LIBRARIES:
        return [f"{prefix}:{known}" for known in entries(prefix) if known.startswith(name)]
    prefixes = [f"{source}:" for source in LIBRARIES if source != "torchvision"]
    return [name for name in (*entries(), *prefixes) if name.startswith(incomplete)]


def complete_formats(incomplete: str) -> list[str]:
    """The formats whose names begin as typed, including those of other distributions."""
    from hookcli.registry import names

    return [name for name in names("reporters") if name.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A torchvision name, timm:NAME, hf:NAME, FILE.pt2, file.py:fn.",
        autocompletion=complete_models,
        show_default=True,
    ),
]


def option(default: Any, panel: str | None, text: str | None, *names: str, **settings: Any) -> Any:
    """A field of a dataclass of options: its default (`list` for a repeatable one), heading (None: Options), help.

    A number with a `min` goes up to MOST_RUNS, unless it has a `max`.
    """
    if "min" in settings:
        settings.setdefault("max", MOST_RUNS)
    given: Any = {"default_factory": list} if default is list else {"default": default}
    return field(**given, metadata={"option": typer.Option(*names, rich_help_panel=panel, help=text, **settings)})


def tolerance_option(panel: str, text: str) -> Any:
    """An option for a tolerance."""
    return option(None, panel, text, metavar="X", min=0, max=GREATEST_TOLERANCE)


def choice(default: Any, panel: str | None, text: str, words: Sequence[str]) -> Any:
    """An option that takes one of these words; see `check_choice`."""
    return option(default, panel, text, metavar="|".join(words))


def check_choice(option: str, given: str | None, words: Sequence[str]) -> None:
    """Raises UsageError unless the word is one of these, or None."""
    if given is not None and given not in words:
        raise UsageError(unknown(option, given, words), option=option.removeprefix("--").replace("-", "_"))


GRADIENTS = "Gradients"
_MODEL, _INPUT, _RUN, _SHOW = "Model", "Input", "Run", "Display"
OUTPUT = "Output"
_PROCESSES = "Several processes"
_BATCH = "First dimension of each input [1; with gradients: 2]."
_DEPTH = "Group or hide deeper rows [fits a screen; files: all]."
_EDIT = (
    "Change a value in the run, for example 'layer1:output=scale(2)'; repeatable. WHAT: input, output, grad_output, "
    "grad_input, grad. OP: zero, ones, scale(2), clamp(-1,1), noise(0.1), square, pkg.mod:fn."
)


@dataclass(frozen=True)
class Options:
    """The shared options, as typed."""

    arg: list[str] = option(list, _MODEL, "Argument for the model's callable; repeatable.", metavar="KEY=VALUE")
    weights: str | None = option(None, _MODEL, "Weights: a file, a folder, or a published name.", metavar="FILE")
    task: str | None = option(None, _MODEL, "Task of an hf: model, as in causal-lm [the config's].", metavar="TASK")
    strict: bool = option(
        True, _MODEL, "Load what fits where weights do not fit the model exactly.", "--strict/--no-strict"
    )
    seed: int = option(0, _MODEL, "Seed of random weights and inputs.", metavar="N", min=0, max=2**63 - 1)
    input: list[str] = option(
        list,
        _INPUT,
        "Shape, once per input: 8x3x224x224, 2x128:int64.",
        "--input",
        "-i",
        metavar="SHAPE",
    )
    batch_size: int | None = option(None, _INPUT, _BATCH, "--batch-size", "-b", metavar="N", min=1, max=2**31 - 1)
    fill: str = option("randn", _INPUT, "Values of generated inputs.", metavar="|".join(FILLS))
    image: list[str] = option(
        list, _INPUT, "Real input: a picture, or a folder of them; repeatable.", metavar="FILE|FOLDER"
    )
    text: list[str] = option(list, _INPUT, "Real input: a text, or a file of lines; repeatable.", metavar="TEXT|FILE")
    tokenizer: str | None = option(None, _INPUT, "Tokenizer for --text [the model's].", metavar="FOLDER")
    input_file: list[str] = option(
        list, _INPUT, "Real input: .npy, .npz, .pt, .safetensors; repeatable, or by KEYWORD=FILE.", metavar="FILE"
    )
    data: str | None = option(None, _INPUT, "Real input: an iterable of batches; file.py:name.", metavar="MODULE:NAME")
    batches: str = option("1", _INPUT, "Run N batches of real input and merge their statistics.", metavar="N|all")
    train: bool | None = option(
        None, _RUN, "Mode of the model [eval; with gradients: train].", "--train/--eval", show_default=False
    )
    device: str = option("cpu", _RUN, "cpu, cuda, cuda:1, mps or meta.", metavar="DEVICE")
    dtype: str | None = option(
        None, _RUN, "dtype of model and inputs: float32, bfloat16 ... [the model's].", metavar="DTYPE"
    )
    threads: int | None = option(None, _RUN, "CPU threads [PyTorch's choice].", metavar="N", min=1, max=2**16)
    fastpath: bool = option(
        True, _RUN, "Show the parts of attention: no fused path in eval mode.", "--fastpath/--no-fastpath"
    )
    edit: list[str] = option(list, _RUN, _EDIT, metavar="PATTERN:WHAT=OP")
    ops: str | None = option(None, _RUN, "Add rows for operators: F.relu, x + y (aten: ATen's).", metavar="[aten]")
    nproc: int | None = option(None, _PROCESSES, "Split the batch among N processes.", metavar="N", min=1, max=256)
    parallel: str = choice(
        "ddp", _PROCESSES, "For gradients: a replica in each process, or parameters sharded by fully_shard.", PARALLEL
    )
    ranks: str = option(
        "merged", _PROCESSES, "Merge the ranks' statistics, or show ranks side by side.", metavar="merged|each|0,1"
    )
    backend: str | None = choice(None, _PROCESSES, "Backend of torch.distributed [nccl on GPUs, else gloo].", BACKENDS)
    timeout: float = option(
        300, _PROCESSES, "Time limit for each stage of the run.", metavar="SECONDS", min=1, max=86400
    )
    depth: str | None = option(None, _SHOW, _DEPTH, metavar="N|all")
    match: str | None = option(None, _SHOW, "Only names like 'layer4.*', or that contain conv.", metavar="PATTERN")
    type: str | None = option(None, _SHOW, "Only modules of this class, for example Conv2d.", metavar="CLASS")
    columns: str | None = option(None, _SHOW, "Only these columns, in this order.", metavar="A,B")
    sort: str | None = option(None, _SHOW, "Sort by this column; -COLUMN: largest first.", metavar="COLUMN")
    # The command's help lists its formats; see typer_classes.
    format: str | None = option(None, OUTPUT, None, "--format", "-f", metavar="NAME", autocompletion=complete_formats)
    output: str | None = option(
        None, OUTPUT, "Write to FILE; its suffix selects the format.", "--output", "-o", metavar="FILE"
    )
    quiet: bool = option(False, OUTPUT, "No progress or remarks on stderr.", "--quiet", "-q")
    debug: bool = option(False, OUTPUT, "Show full tracebacks of errors.", "--debug")


@dataclass(frozen=True)
class HistOptions:
    """The option of commands that show statistics of tensors."""

    hist: bool = option(False, _SHOW, "Add quantiles; with a LAYER, draw its histogram.", "--hist")


@dataclass(frozen=True)
class TimeOptions:
    """The option of commands whose rows are calls of modules."""

    time: bool = option(False, _RUN, "Time each module, in further passes without other hooks.", "--time")


@dataclass(frozen=True)
class CacheOptions:
    """The option of commands whose reports are cached."""

    cache: bool = option(
        True, _RUN, "Neither read nor write the cache of reports.", "--cache/--no-cache", show_default=False
    )


SHARED = frozenset(one.name for one in fields(Options))
SEVERAL = tuple(one.name for one in fields(Options) if one.metadata["option"].rich_help_panel == _PROCESSES)
"""The options of a run in several processes."""
DATA = ("image", "text", "tokenizer", "input_file", "data", "batches")
"""The options of real input."""


class OnlyFields(frozenset[str]):
    """Metadata of an annotated dataclass of options: the fields that a command has; the others keep their defaults."""


def all_but(*names: str) -> OnlyFields:
    """All shared options but these."""
    return OnlyFields(f.name for f in fields(Options) if f.name not in names)


SHOWING = ("columns", "sort", "format", "output", "quiet", "debug")
ShowingOptions = Annotated[Options, OnlyFields(SHOWING)]
"""The options of commands that show a table without running a model."""
BuildingOptions = Annotated[
    Options, OnlyFields(("arg", "weights", "task", "strict", "seed", "match", "type", *SHOWING))
]
"""The options of commands that build a model without running it."""


OneBatchOptions = Annotated[Options, all_but("batches", "ops")]
"""The options of commands whose rows do not merge over batches."""


def takes_options(function: Callable[..., T]) -> Callable[..., T]:
    """The command with a parameter for each field of its dataclass parameters, which it gets filled.

    Such a parameter may be `Annotated` with the `OnlyFields` that this command has.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        kind: Any = getattr(hint, "__origin__", hint)
        if is_dataclass(kind):
            only = next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, OnlyFields)), None)
            added = [*_parameters(kind, only)]
            groups[parameter.name] = cast(Any, kind), [one.name for one in added]
            parameters += added
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def command(**values: Any) -> T:
        filled = {name: kind(**{key: values.pop(key) for key in keys}) for name, (kind, keys) in groups.items()}
        return function(**values, **filled)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _parameters(kind: Any, only: OnlyFields | None) -> Iterator[inspect.Parameter]:
    """A parameter for each field of a dataclass; a list is Typer's own for each call."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        if only is None or one.name in only:
            default = one.default if one.default is not MISSING else []
            declared = one.metadata.get("option")
            hint: Any = Annotated[hints[one.name], declared] if declared else hints[one.name]
            yield inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)

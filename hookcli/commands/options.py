"""The options that commands share, and the decorator that makes parameters of a dataclass of options."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import typer

from hookcli.errors import UsageError, shortened, unknown
from hookcli.hooks.choices import BACKENDS, PARALLEL

T = TypeVar("T")

DEFAULT_MODEL = "resnet50"
_DIGITS = 18  # int() refuses thousands of digits


def complete_models(incomplete: str) -> list[str]:
    """The torchvision models whose names begin as typed."""
    from hookcli.sources.catalog import entries

    return [name for name in entries() if name.startswith(incomplete)]


def complete_formats(incomplete: str) -> list[str]:
    """The formats whose names begin as typed, including those of other distributions."""
    from hookcli.registry import names

    return [name for name in names("reporters") if name.startswith(incomplete)]


def parse_depth(text: str | None) -> float | None:
    """`3`, or `all` as infinity; None where it is left to the reporter. Raises UsageError for anything else."""
    if text is None or text == "auto":
        return None
    if text == "all":
        return math.inf
    if not text.isdecimal() or text == "0" or len(text) > _DIGITS:
        raise UsageError(f"--depth {shortened(text)!r}: give a number from 1, or all")
    return int(text)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A torchvision name, package.module:callable, or path/to/file.py:callable.",
        autocompletion=complete_models,
        show_default=True,
    ),
]


def _option(panel: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **settings)


def choice(panel: str, words: Sequence[str], text: str) -> Any:
    """An option that takes one of these words; see `check_choice`."""
    return _option(panel, metavar="|".join(words), help=text)


def check_choice(option: str, given: str | None, words: Sequence[str]) -> None:
    """Raises UsageError unless the word is one of these, or None."""
    if given is not None and given not in words:
        raise UsageError(unknown(option, given, words))


GRADIENTS = "Gradients"
_MODEL, _INPUT, _RUN, _SHOW, _OUT = "Model", "Input", "Run", "Display", "Output"
_PROCESSES = "Several processes"


@dataclass(frozen=True)
class Options:
    """The shared options, as typed."""

    arg: Annotated[
        list[str], _option(_MODEL, metavar="KEY=VALUE", help="Argument for the model's callable; repeatable.")
    ] = field(default_factory=list)
    weights: Annotated[
        str | None,
        _option(_MODEL, metavar="NAME|FILE", help="Downloaded torchvision weights, or a .pt or .safetensors file."),
    ] = None
    strict: Annotated[
        bool, _option(_MODEL, "--strict/--no-strict", help="Require weights that fit the model exactly.")
    ] = True
    seed: Annotated[
        int, _option(_MODEL, metavar="N", min=0, max=2**63 - 1, help="Seed of random weights and inputs.")
    ] = 0
    input: Annotated[
        list[str],
        _option(
            _INPUT,
            "--input",
            "-i",
            metavar="SHAPE",
            help="Shape of an input: 10x3x224x224, or 2x128:int64; once per input.",
        ),
    ] = field(default_factory=list)
    batch_size: Annotated[
        int | None,
        _option(
            _INPUT,
            "--batch-size",
            "-b",
            metavar="N",
            min=1,
            help="Batch size (first dimension of each input) [1; with gradients: 2].",
        ),
    ] = None
    fill: Annotated[str, _option(_INPUT, metavar="ones|zeros|randn|rand", help="Values of the inputs.")] = "randn"
    train: Annotated[
        bool | None,
        _option(_RUN, "--train/--eval", show_default=False, help="Mode of the model [eval; with gradients: train]."),
    ] = None
    device: Annotated[str, _option(_RUN, metavar="DEVICE", help="cpu, cuda, cuda:1, mps ...; `shapes` uses none.")] = (
        "cpu"
    )
    dtype: Annotated[
        str | None,
        _option(_RUN, metavar="DTYPE", help="dtype of model and inputs: float32, bfloat16 ... [the model's]."),
    ] = None
    threads: Annotated[int | None, _option(_RUN, metavar="N", min=1, help="CPU threads [PyTorch's choice].")] = None
    fastpath: Annotated[
        bool, _option(_RUN, "--fastpath/--no-fastpath", help="Allow attention's fused path in eval mode.")
    ] = True
    edit: Annotated[
        list[str],
        _option(
            _RUN,
            metavar="PATTERN:WHAT=OP",
            help="Change a value in the run, for example 'layer1:output=scale(2)'; repeatable. WHAT: input, output, "
            "grad_output, grad_input, grad. OP: zero, ones, scale(2), clamp(-1,1), noise(0.1), square, pkg.mod:fn.",
        ),
    ] = field(default_factory=list)
    nproc: Annotated[
        int | None,
        _option(_PROCESSES, metavar="N", min=1, help="Split the batch among N processes."),
    ] = None
    parallel: Annotated[
        str,
        choice(_PROCESSES, PARALLEL, "For gradients: a replica in each process, or parameters sharded by fully_shard."),
    ] = "ddp"
    ranks: Annotated[
        str,
        _option(_PROCESSES, metavar="merged|each|0,1", help="Merge the ranks' statistics, or show ranks side by side."),
    ] = "merged"
    backend: Annotated[
        str | None, choice(_PROCESSES, BACKENDS, "Backend of torch.distributed [nccl on GPUs, else gloo].")
    ] = None
    timeout: Annotated[
        float,
        _option(_PROCESSES, metavar="SECONDS", min=1, max=86400, help="Time limit for each stage of the run."),
    ] = 300
    depth: Annotated[
        str | None,
        _option(
            _SHOW,
            metavar="N|all",
            help="Depth to show (graph tables: group; trace: hide deeper rows) [fits the screen; files: all].",
        ),
    ] = None
    match: Annotated[
        str | None, _option(_SHOW, metavar="GLOB", help="Only matching names, for example 'layer4.*'.")
    ] = None
    type: Annotated[
        str | None, _option(_SHOW, metavar="CLASS", help="Only modules of this class, for example Conv2d.")
    ] = None
    columns: Annotated[str | None, _option(_SHOW, metavar="A,B,...", help="Only these columns, in this order.")] = None
    sort: Annotated[
        str | None, _option(_SHOW, metavar="COLUMN", help="Sort by a column, smallest first; -COLUMN: largest first.")
    ] = None
    format: Annotated[  # its help lists the formats of the command (see group.py)
        str | None, _option(_OUT, "--format", "-f", metavar="NAME", autocompletion=complete_formats)
    ] = None
    output: Annotated[
        str | None,
        _option(_OUT, "--output", "-o", metavar="FILE", help="Write to FILE; its suffix selects the format."),
    ] = None
    quiet: Annotated[bool, _option(_OUT, "--quiet", "-q", help="No progress or remarks on stderr.")] = False
    debug: Annotated[bool, _option(_OUT, "--debug", help="Show full tracebacks of errors.")] = False


@dataclass(frozen=True)
class HistOptions:
    """The option of commands that show statistics of tensors."""

    hist: Annotated[
        bool,
        _option(_SHOW, "--hist", help="Quantiles, and shares outside float16, bfloat16 and float8, from histograms."),
    ] = False


class OnlyFields(frozenset[str]):
    """Metadata of an annotated dataclass of options: the fields that a command has; the others keep their defaults."""


def all_but(*names: str) -> OnlyFields:
    """All shared options but these."""
    return OnlyFields(f.name for f in fields(Options) if f.name not in names)


SHOWING = ("columns", "sort", "format", "output", "quiet", "debug")
ShowingOptions = Annotated[Options, OnlyFields(SHOWING)]
"""The options of commands that show a table without running a model."""
BuildingOptions = Annotated[Options, OnlyFields(("arg", "weights", "strict", "seed", "match", "type", *SHOWING))]
"""The options of commands that build a model without running it."""


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
            yield inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[one.name]
            )

"""The options that commands share, declared once, and the decorator that gives them to a command."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from hookcli.errors import UsageError, shortened, unknown
from hookcli.hooks.choices import BACKENDS, PARALLEL

T = TypeVar("T")

DEFAULT_MODEL = "resnet50"
_DIGITS = 18  # Python converts no thousands of them


def complete_models(incomplete: str) -> list[str]:
    """The torchvision models that begin as typed."""
    from hookcli.sources.catalog import entries

    return [name for name in entries() if name.startswith(incomplete)]


def complete_formats(incomplete: str) -> list[str]:
    """The formats that begin as typed, those of other distributions too."""
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
    """An option that takes one of these words; `check_choice` tells another."""
    return _option(panel, metavar="|".join(words), help=text)


def check_choice(option: str, given: str | None, words: Sequence[str]) -> None:
    """Raises UsageError for a word that is none of these."""
    if given is not None and given not in words:
        raise UsageError(unknown(option, given, words))


GRADIENTS = "Gradients"
_MODEL, _INPUT, _RUN, _SHOW, _OUT = "Model", "Input", "Run", "What to show", "Output"
_PROCESSES = "Several processes"


@dataclass(frozen=True)
class Options:
    """What the shared options say, as typed by the user."""

    arg: Annotated[
        list[str], _option(_MODEL, metavar="KEY=VALUE", help="Argument for the model's callable; repeatable.")
    ] = field(default_factory=list)
    weights: Annotated[
        str | None,
        _option(
            _MODEL, metavar="NAME|FILE", help="torchvision weights that are on disk, or a .pt or .safetensors file."
        ),
    ] = None
    strict: Annotated[
        bool, _option(_MODEL, "--strict/--no-strict", help="Whether the weights must fit the model exactly.")
    ] = True
    seed: Annotated[
        int, _option(_MODEL, metavar="N", min=0, max=2**63 - 1, help="For random weights and random input.")
    ] = 0
    input: Annotated[
        list[str],
        _option(_INPUT, "--input", "-i", metavar="SHAPE", help="10x3x224x224, or 2x128:int64; once per input."),
    ] = field(default_factory=list)
    batch_size: Annotated[
        int | None,
        _option(
            _INPUT, "--batch-size", "-b", metavar="N", min=1, help="First size of each input [1; with gradients: 2]."
        ),
    ] = None
    fill: Annotated[str, _option(_INPUT, metavar="ones|zeros|randn|rand", help="What the input holds.")] = "randn"
    train: Annotated[
        bool | None,
        _option(_RUN, "--train/--eval", show_default=False, help="Mode of the model [eval; with gradients: train]."),
    ] = None
    device: Annotated[str, _option(_RUN, metavar="DEVICE", help="cpu, cuda, cuda:1, mps ...; shapes needs none.")] = (
        "cpu"
    )
    dtype: Annotated[
        str | None,
        _option(_RUN, metavar="DTYPE", help="For the model and its input: float32, bfloat16 ... [the model's own]."),
    ] = None
    threads: Annotated[int | None, _option(_RUN, metavar="N", min=1, help="CPU threads [PyTorch's choice].")] = None
    fastpath: Annotated[
        bool, _option(_RUN, "--fastpath/--no-fastpath", help="Let attention take its fused path in eval mode.")
    ] = True
    edit: Annotated[
        list[str],
        _option(
            _RUN,
            metavar="PATTERN:WHAT=OP",
            help="Change what flows, as in 'layer1:output=scale(2)'; repeatable. WHAT: input, output, grad_output, "
            "grad_input, grad. OP: zero, ones, scale(2), clamp(-1,1), noise(0.1), square, pkg.mod:fn.",
        ),
    ] = field(default_factory=list)
    nproc: Annotated[
        int | None,
        _option(_PROCESSES, metavar="N", min=1, help="Share the batch among N processes."),
    ] = None
    parallel: Annotated[
        str, choice(_PROCESSES, PARALLEL, "For gradients a replica each, or parameters sharded by fully_shard.")
    ] = "ddp"
    ranks: Annotated[
        str,
        _option(_PROCESSES, metavar="merged|each|0,1", help="Figures of all, or of ranks side by side."),
    ] = "merged"
    backend: Annotated[str | None, choice(_PROCESSES, BACKENDS, "How they talk [nccl on GPUs, else gloo].")] = None
    timeout: Annotated[
        float,
        _option(_PROCESSES, metavar="SECONDS", min=1, max=86400, help="Longest time for a stage of the run."),
    ] = 300
    depth: Annotated[
        str | None,
        _option(_SHOW, metavar="N|all", help="Group (trace: hide) what lies deeper [as fits a screen; files: all]."),
    ] = None
    match: Annotated[str | None, _option(_SHOW, metavar="GLOB", help="Only names that match, such as 'layer4.*'.")] = (
        None
    )
    type: Annotated[str | None, _option(_SHOW, metavar="CLASS", help="Only modules of a class, such as Conv2d.")] = None
    columns: Annotated[str | None, _option(_SHOW, metavar="A,B,...", help="Only these columns, in this order.")] = None
    sort: Annotated[str | None, _option(_SHOW, metavar="COLUMN", help="Smallest first; -COLUMN: largest first.")] = None
    format: Annotated[  # its help lists the formats of the command (see group.py)
        str | None, _option(_OUT, "--format", "-f", metavar="NAME", autocompletion=complete_formats)
    ] = None
    output: Annotated[
        str | None, _option(_OUT, "--output", "-o", metavar="FILE", help="Write there; the suffix names the format.")
    ] = None
    quiet: Annotated[bool, _option(_OUT, "--quiet", "-q", help="No progress and no remarks on stderr.")] = False
    debug: Annotated[bool, _option(_OUT, "--debug", help="Show the whole traceback of an error.")] = False


# Commands that show a table without running a model take these alone.
SHOWING = ("columns", "sort", "format", "output", "quiet", "debug")
# Commands that build a model without running it take these, too.
BUILDING = ("arg", "weights", "strict", "seed", "match", "type", *SHOWING)


def takes_options(function: Callable[..., T], names: Iterable[str] | None = None) -> Callable[..., T]:
    """The command with the shared options (or those named) among its parameters, handed to it as `options`."""
    hints = get_type_hints(Options, include_extras=True)
    shared = [f for f in fields(Options) if names is None or f.name in names]
    own = [
        parameter.replace(annotation=get_type_hints(function, include_extras=True)[parameter.name])
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "options"
    ]
    added = [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=f.default if f.default is not MISSING else [],
            annotation=hints[f.name],
        )
        for f in shared
    ]
    positional = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

    @functools.wraps(function)
    def command(**values: Any) -> T:
        options = Options(**{f.name: values.pop(f.name) for f in shared})
        return function(options=options, **values)

    command.__signature__ = inspect.Signature([*positional, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*positional, *added)}
    return command

"""hookcli memory"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from hookcli.checks.selection import parse_figure
from hookcli.commands.backward_options import OnePassOptions, StepOptions
from hookcli.commands.options import DEFAULT_MODEL, Model, OnlyFields, Options, check_choice, choice, option
from hookcli.commands.output import Output
from hookcli.commands.probe_command import feedback_of, setting_of, use_threads
from hookcli.commands.processes import refuse_alone
from hookcli.commands.progress import working
from hookcli.commands.recipe import find_recipe
from hookcli.errors import UsageError
from hookcli.hooks.option_values import (
    IMPLEMENTATIONS,
    MEMORY_DEVICES,
    MEMORY_OPTIMIZER,
    MEMORY_OPTIMIZERS,
    OPS,
    PARALLEL,
)
from hookcli.reporters import moments
from hookcli.table import Column
from hookcli.table.columns.layouts import FITS, MEMORY, TIMELINE, with_operators
from hookcli.table.names import checked_filter

if TYPE_CHECKING:
    from hookcli.engine.feedback import Feedback
    from hookcli.engine.memory.request import MemoryRequest

EXAMPLES = (
    "hookcli memory resnet50 --batch-size 64",
    "hookcli memory vit_b_16 --device cuda --fits 24GiB",
    "hookcli memory resnet50 -b 64 --checkpoint 'layer?.*'",
    "hookcli memory vit_b_16 -b 64 --ops --sort -bytes",
    "hookcli memory resnet50 -b 64 --format chart",
    "hookcli memory vit_l_16 -b 256 --nproc 8 --parallel fsdp",
)
COLUMNS = MEMORY
FIRST = (
    *("device", "optimizer", "inference", "fits", "checkpoint", "timeline"),
    *("input", "batch_size", "ops", "format", "output"),
)
_SHARED = (
    *("arg", "task", "seed", "input", "batch_size", "fill", "train", "dtype", "threads", "nproc", "parallel"),
    "ops",
    *("depth", "match", "type", "columns", "sort", "format", "output", "quiet", "debug"),
)
_MEMORY = "Memory"
_AMP = ("bfloat16", "float16")


@dataclass(frozen=True)
class MemoryOptions:
    """Options of `hookcli memory` alone."""

    device: str = choice("cpu", _MEMORY, "Device whose memory is computed; it need not be at hand.", MEMORY_DEVICES)
    optimizer: str = option(
        MEMORY_OPTIMIZER, _MEMORY, f"Optimizer of the step: {', '.join(MEMORY_OPTIMIZERS)}.", metavar="NAME"
    )
    implementation: str | None = choice(
        None, _MEMORY, "The optimizer's implementation [PyTorch's choice on the device].", IMPLEMENTATIONS
    )
    amp: str | None = choice(None, _MEMORY, "Run the forward under torch.autocast.", _AMP)
    inference: bool = option(False, _MEMORY, "A forward without gradients, in eval mode.", "--inference")
    fits: str | None = option(None, _MEMORY, "Find the largest batch that fits into this memory.", metavar="BYTES")
    checkpoint: list[str] = option(
        list, _MEMORY, "Recompute the activations of these modules, such as 'layers.*'; repeatable.", metavar="PATTERN"
    )
    timeline: bool = option(False, _MEMORY, "Show the memory over the step instead of what holds it.", "--timeline")


def memory(
    model: Model = DEFAULT_MODEL,
    *,
    own: MemoryOptions,
    step: OnePassOptions,
    options: Annotated[Options, OnlyFields(_SHARED)],
) -> int:
    """Show the memory that training takes: its peak, and what holds it.

    The model runs on the meta device, so neither a GPU nor that much memory is needed, unless the model reads values.
    """
    check_choice("--device", own.device, MEMORY_DEVICES)
    check_choice("--optimizer", own.optimizer, MEMORY_OPTIMIZERS)
    check_choice("--amp", own.amp, _AMP)
    check_choice("--implementation", own.implementation, IMPLEMENTATIONS)
    check_choice("--ops", options.ops, OPS[:1])
    check_choice("--parallel", options.parallel, PARALLEL)
    _refuse_in_vain(own, step, options)
    output, limit = Output(options), _limit(own.fits, options)
    shown = _shown(own, options, output)
    for _, columns in shown:
        output.check_columns(columns)
    with working(options) as progress:
        progress.stage("importing torch")
        use_threads(options)
        request = _request(model, own, step, options, feedback_of(options, progress))
        reports = [request.fits(limit)] if limit is not None else request.reports([name for name, _ in shown])
    output.write(reports, mixed=True)
    return 0


def _request(model: str, own: MemoryOptions, step: StepOptions, options: Options, feedback: Feedback) -> MemoryRequest:
    from hookcli.engine.memory.plan import MemoryPlan
    from hookcli.engine.memory.request import MemoryRequest
    from hookcli.sources.inputs import parse_dtype

    train = not own.inference if options.train is None else options.train
    parallel = options.parallel if options.nproc else None
    amp = parse_dtype(own.amp, "amp") if own.amp else None
    return MemoryRequest(
        find_recipe(model, options),
        replace(setting_of(options, train, targets=True), parts=options.nproc or 1, parallel=parallel),
        MemoryPlan(
            own.optimizer,
            own.implementation,
            own.inference,
            amp=amp,
            checkpoint=own.checkpoint,
            device=own.device,
            ops=options.ops,
        ),
        step.make(),
        feedback,
        partial(_wanted, options) if options.match is not None or options.type is not None else None,
    )


def _wanted(options: Options, types: Mapping[str, str]) -> Callable[[str], bool]:
    """The test of modules by --match and --type. Raises UsageError for names that none has."""
    matches = checked_filter(options.match, options.type, types)
    return lambda fqn: fqn in types and matches(fqn, types[fqn]) and options.type in (None, types[fqn])


def _refuse_in_vain(own: MemoryOptions, step: StepOptions, options: Options) -> None:
    """Raise UsageError for options that others leave without an effect."""
    if options.nproc is None:
        refuse_alone(options)
    if own.fits is not None and own.timeline:
        raise UsageError("--timeline and --fits: the search for a batch has no timeline; give one of them")
    for name, given in {"match": options.match, "type": options.type}.items():
        if own.fits is not None and given is not None:
            raise UsageError(f"--{name} {given}: --fits has a row for each batch; leave one out")
    plain = MemoryOptions()
    named = {"loss": step.loss, "backward-vector": step.backward_vector, "implementation": own.implementation}
    named |= {"optimizer": own.optimizer if own.optimizer != plain.optimizer else None}
    named |= {"checkpoint": next(iter(own.checkpoint), None)}
    for name, given in named.items():
        if own.inference and given:
            raise UsageError(f"--{name} {given}: --inference has neither backward nor a step; leave one out")


def _limit(text: str | None, options: Options) -> int | None:
    """The bytes of --fits. Raises UsageError for a text that is no size, and together with --batch-size."""
    if text is None:
        return None
    figure = parse_figure(text, "bytes")
    if figure is None or figure < 1:
        raise UsageError(f"--fits {text}: give a size, such as 24GiB", option="fits")
    if options.batch_size is not None:
        raise UsageError(f"--fits {text} finds the batch: remove --batch-size {options.batch_size}", option="fits")
    return int(figure)


def _shown(own: MemoryOptions, options: Options, output: Output) -> Sequence[tuple[str, Sequence[Column]]]:
    """The names and columns of the reports to make: a page has both, a picture the timeline.

    Several processes are computed from the timeline of one, which does not say which module holds what.
    """
    if own.fits is not None:
        return [("fits", FITS)]
    if own.timeline or options.nproc or output.draws(moments.NEEDS):
        return [("timeline", TIMELINE)]
    return [
        ("memory", with_operators(MEMORY) if options.ops else MEMORY),
        *([("timeline", TIMELINE)] if output.name == "html" else []),
    ]

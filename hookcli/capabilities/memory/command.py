"""hookcli memory"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from hookcli.capabilities.memory.check_options import DEVICES, IMPLEMENTATIONS, OPTIMIZER, OPTIMIZERS
from hookcli.capabilities.memory.layout import FITS, MEMORY, TIMELINE
from hookcli.capabilities.memory.next_command import at_batch
from hookcli.commands.model import find_recipe
from hookcli.commands.next_command import with_next
from hookcli.commands.option_fields import OnlyFields, check_choice, choice, option
from hookcli.commands.options import DEFAULT_MODEL, RUNNING, SHOWING, Model, Options
from hookcli.commands.output import Output
from hookcli.commands.probe_command import feedback_of, setting_of
from hookcli.commands.progress import working
from hookcli.commands.room import RESERVE, parse_room
from hookcli.commands.run_options import OnePassOptions, StepOptions
from hookcli.engine.batch_search import MOST
from hookcli.errors import UsageError
from hookcli.hooks.option_values import OPS, PARALLEL
from hookcli.reporters import moments
from hookcli.table import Column
from hookcli.table.columns.layouts import with_operators
from hookcli.table.names import checked_filter

if TYPE_CHECKING:
    from hookcli.capabilities.memory.request import MemoryRequest
    from hookcli.engine.setting import Feedback

EXAMPLES = (
    "hookcli memory resnet50 --batch-size 64",
    "hookcli memory vit_b_16 --fits 24GiB",
    "hookcli memory resnet50 -b 64 --checkpoint 'layer?.*'",
    "hookcli memory vit_b_16 -b 64 --ops --sort -bytes",
    "hookcli memory resnet50 -b 64 --format chart",
    "hookcli memory vit_l_16 -b 256 --nproc 8 --parallel fsdp",
)
COLUMNS = MEMORY
FIRST = (
    "fits batch_size input task optimizer device inference checkpoint timeline format output ops dtype nproc reserve"
)
_SHARED = {*RUNNING, "nproc", "ops", "depth", "match", "type", *SHOWING} - {"device"}
_AMP = ("bfloat16", "float16")
_NAMES = ("--gpu-memory", "--memory", "--vram")  # of other tools, for --fits
_MOST_PROCESSES = 1024
_DIGITS = 9


@dataclass(frozen=True)
class MemoryOptions:
    """Options of `hookcli memory` alone."""

    panel = "Memory"

    device: str | None = choice(None, "Device to compute for [cpu; with --fits: cuda].", DEVICES)
    optimizer: str = option(
        OPTIMIZER, f"Optimizer of the step: {', '.join(OPTIMIZERS)}.", metavar="NAME", words=OPTIMIZERS
    )
    implementation: str | None = choice(
        None, "The optimizer's implementation [PyTorch's choice on the device].", IMPLEMENTATIONS, seldom=True
    )
    amp: str | None = choice(None, "Run the forward under torch.autocast.", _AMP)
    inference: bool = option(False, "A forward without gradients, in eval mode.")
    fits: str | None = option(
        None, "Find the largest batch that fits into this memory.", metavar="BYTES", meant_by=_NAMES
    )
    reserve: str | None = option(
        None, f"Memory that --fits keeps free; +300MiB adds to it [{RESERVE}, at most half].", metavar="BYTES"
    )
    checkpoint: list[str] = option(
        list, "Recompute these modules' activations; for example 'layers.*'; repeatable.", metavar="PATTERN"
    )
    timeline: bool = option(False, "Show how memory changes over the step.")
    parallel: str = option(
        PARALLEL[0],
        "With --nproc: ddp or fsdp. Alone: tp=N, N processes that divide the model by its own plan.",
        metavar="ddp|fsdp|tp=N",
        panel="Several processes",
        after="nproc",
    )


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
    check_choice("--ops", options.ops, OPS[:1])
    _refuse_in_vain(own, step, options)
    own = replace(own, device=own.device or ("cpu" if own.fits is None else "cuda"))
    output = Output(options)
    divided = parse_parallel(own, options)
    room = None if own.fits is None else parse_room(own.fits, own.reserve, own.device)
    shown = _shown(own, options, output)
    for _, columns in shown:
        output.check_columns(columns)
    with working(options) as progress:
        request = _request(model, own, step, options, feedback_of(options, progress))
        request = replace(request, tensor_parallel=divided)
        reports = [request.fits(room)] if room else request.reports([name for name, _ in shown])
    if batch := reports[0].totals.get("largest_batch", 0) if room else 0:
        wanted = options.batch_size if batch == MOST else batch * request.parts  # that search just ended
        reports = with_next(reports, at_batch(wanted, model, own, step, options))
    output.write(reports, mixed=True)
    return 0


def _request(model: str, own: MemoryOptions, step: StepOptions, options: Options, feedback: Feedback) -> MemoryRequest:
    from hookcli.capabilities.memory.plan import MemoryPlan
    from hookcli.capabilities.memory.request import MemoryRequest
    from hookcli.sources.inputs import parse_dtype

    train = not own.inference if options.train is None else options.train
    parallel = own.parallel if options.nproc else None
    setting = replace(setting_of(options, train, targets=True), parts=options.nproc or 1, parallel=parallel)
    amp = parse_dtype(own.amp, "amp") if own.amp else None
    plan = MemoryPlan(own.optimizer, own.implementation, own.inference, amp=amp, checkpoint=own.checkpoint)
    plan = replace(plan, device=own.device or "cpu", ops=options.ops)

    def wanted(types: Mapping[str, str]) -> Callable[[str], bool]:
        matches = checked_filter(options.match, options.type, types)
        return lambda fqn: fqn in types and matches(fqn, types[fqn]) and options.type in (None, types[fqn])

    narrow = None if options.match is None and options.type is None else wanted
    return MemoryRequest(find_recipe(model, options), setting, plan, step.make(), feedback, narrow)


def parse_parallel(own: MemoryOptions, options: Options) -> int:
    """The number of processes that divide the model, 1 for the other ways. Raises UsageError for what does not fit."""
    way, is_divided, number = own.parallel.partition("=")
    if not is_divided:
        check_choice("--parallel", way, (*PARALLEL, "tp=8"))
        if way != PARALLEL[0] and options.nproc is None:
            raise UsageError(f"--parallel {way}: needs several processes; give --nproc N", option="parallel")
        return 1
    asked = f"--parallel {own.parallel}"
    if way != "tp" or not number.isdecimal() or not 1 < int(number[:_DIGITS]) <= _MOST_PROCESSES:
        raise UsageError(f"{asked}: give ddp, fsdp, or tp=N with N from 2 to {_MOST_PROCESSES:,}", option="parallel")
    if options.nproc is not None:
        raise UsageError(
            f"{asked} and --nproc {options.nproc}: tp has its own number; remove --nproc", option="parallel"
        )
    if own.amp is not None:
        raise UsageError(f"{asked} and --amp {own.amp}: not computed together; --dtype {own.amp} casts the model")
    return int(number)


def _refuse_in_vain(own: MemoryOptions, step: StepOptions, options: Options) -> None:
    if own.fits is None and own.reserve is not None:
        raise UsageError(f"--reserve {own.reserve}: only --fits keeps memory free; give both", option="reserve")
    if own.fits is not None and own.timeline:
        raise UsageError("--timeline and --fits: the search for a batch has no timeline; give one of them")
    for name, value in {"match": options.match, "type": options.type}.items():
        if own.fits is not None and value is not None:
            raise UsageError(f"--{name} {value}: --fits has a row for each batch; leave one out")
    of_step = {"loss": step.loss, "backward-vector": step.backward_vector, "implementation": own.implementation}
    of_step |= {"optimizer": own.optimizer if own.optimizer != OPTIMIZER else None}
    of_step |= {"checkpoint": next(iter(own.checkpoint), None)}
    for name, value in of_step.items():
        if own.inference and value:
            raise UsageError(f"--{name} {value}: --inference has neither backward nor a step; leave one out")


def _shown(own: MemoryOptions, options: Options, output: Output) -> Sequence[tuple[str, Sequence[Column]]]:
    """The names and columns of the reports to make. Several processes are computed from the timeline of one."""
    if own.fits is not None:
        return [("fits", FITS)]
    if own.timeline or options.nproc or output.draws(moments.NEEDS):
        return [("timeline", TIMELINE)]
    whole = ("memory", with_operators(MEMORY) if options.ops else MEMORY)
    return [whole, ("timeline", TIMELINE)] if output.name == "html" else [whole]

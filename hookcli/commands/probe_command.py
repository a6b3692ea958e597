"""Runs a command's probe on the model that a spec names, and writes the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from hookcli import registry
from hookcli.commands.model import Selection, find_recipe
from hookcli.commands.next_command import about_fault, with_next
from hookcli.commands.option_fields import check_choice
from hookcli.commands.options import DEFAULT_MODEL, LookOptions, Model, Options
from hookcli.commands.output import Output, remark
from hookcli.commands.processes import Processes, columns_shown, several
from hookcli.commands.progress import Progress, salvaging
from hookcli.commands.run_options import StepOptions, data_of
from hookcli.errors import HookcliError, UsageError
from hookcli.hooks.option_values import FILLS, OPS
from hookcli.system.torchrun import world
from hookcli.table import Report
from hookcli.table.columns.costs import TIMES

if TYPE_CHECKING:
    from hookcli.engine.capture import Hooking
    from hookcli.engine.setting import Feedback, Setting
    from hookcli.engine.step import Step
    from hookcli.hooks.edits.base import Edit
    from hookcli.probes.base import Probe
    from hookcli.sources.base import Recipe

# Batch normalization in training mode refuses a batch of one value per channel.
_TRAINING_BATCH = 2
Compare = Callable[[Report, Report], Report]


def feedback_of(options: Options, progress: Progress, processes: Processes | None = None, label: str = "") -> Feedback:
    """Feedback that shows people, and the other processes, what a run is doing; each remark once, after the `label`."""
    from hookcli.engine.setting import Feedback

    def stage(text: str) -> None:
        progress.stage(text)
        if processes:
            processes.stage(text)

    return Feedback(stage, cache(lambda text: remark(label + text, options)), progress.follow)


@dataclass(frozen=True)
class RunOptions:
    """How a command runs its model: `train` is its default mode; `time` adds the times of calls."""

    train: bool = False
    step: StepOptions = StepOptions()
    time: bool = False
    compiling: LookOptions = LookOptions()


def inspect_model(
    spec: str,
    make_probe: Callable[[], Probe],
    options: Options,
    how: RunOptions = RunOptions(),
    *,
    compare: Compare | None = None,
    keep: Callable[[Sequence[Report]], object] | None = None,
) -> int:
    """Run a probe on a model and write its report; `keep` then gets it, too.

    With `compare` the hooks are registered through PyTorch's global functions, then the model is run again with hooks
    registered module by module, and the two reports become one.
    """
    output = Output(options)  # so that a wrong format or folder fails before the work, not after
    with salvaging(output) as progress:
        from hookcli.engine.capture import Hooking
        from hookcli.engine.probing import make_probe as made

        probe = made(make_probe)
        output.check_columns(columns_shown((*probe.columns, *(TIMES if how.time else ())), options))
        _check_options(probe, options, how.time)
        _check_compiling(probe, options, how)
        asked, edits = how.step.make(), edits_of(options)  # a mistake ends here, before other processes start
        train = how.train if options.train is None else options.train
        with several(options, values=probe.values) as processes:
            if processes is None:
                return 0
            feedback, recipe = feedback_of(options, progress, processes), find_recipe(spec, options)
            hooking = Hooking(edits=edits, fastpath=options.fastpath, ops=options.ops, time=how.time)
            hooking = replace(hooking, emulate_casts=how.compiling.emulate_casts)
            setting = replace(setting_of(options, train, targets=probe.needs_backward), compile=how.compiling.compile)
            if probe.values and setting.device.type == "meta":
                raise UsageError("--device meta: no values to look at; `hookcli shapes` needs none", option="device")
            processes.check_edits(edits, probe.needs_backward)
            inspect = partial(_inspect, recipe, make_probe, processes, asked, setting=setting, feedback=feedback)
            if compare:
                ours, theirs = inspect(replace(hooking, globally=True)), inspect(hooking)
                reports = [compare(*pair) for pair in zip(ours, theirs, strict=True)]
            else:
                reports = inspect(hooking)
    output.write(with_next(reports, about_fault(reports, spec, options, how.step, train)))
    if keep:
        keep(reports)
    return 0


def _check_options(probe: Probe, options: Options, time: bool) -> None:
    """Raises UsageError for options that the probe's rows, or --time if asked for, don't go with."""
    if options.batches != "1" and not probe.merges_batches:
        raise UsageError(f"--batches: the rows of {probe.name} don't merge over batches; leave it out")
    if options.ops and not probe.operators:
        raise UsageError(f"--ops: the rows of {probe.name} are not operators; leave it out", option="ops")
    check_choice("--ops", options.ops, OPS)
    if not time:
        return
    if max(options.nproc or 1, world().size) > 1:
        raise UsageError(f"--time: times one process; remove {'--nproc' if options.nproc else 'torchrun'}")
    if options.device == "meta":
        raise UsageError("--time: nothing is computed on the meta device; remove --device meta", option="device")


def _check_compiling(probe: Probe, options: Options, how: RunOptions) -> None:
    """Raises UsageError for options that do not go with a look inside a compiled model."""
    asked = {
        "--ops": options.ops and "operators are fused there",
        "--edit": options.edit and "what it changes would be another program",
        "--time": how.time and "its modules do not run one by one",
        "--nproc": max(options.nproc or 1, world().size) > 1 and "one process alone is looked into",
        "--via module": not probe.inside_compiled and "full backward hooks are not compiled",
        "--device meta": options.device == "meta" and "nothing is computed there",
    }
    for name, why in asked.items():
        if how.compiling.compile and why:
            raise UsageError(f"--compile and {name}: {why}; leave one of them out", option="compile")


def _inspect(
    recipe: Recipe,
    make_probe: Callable[[], Probe],
    processes: Processes,
    step: Step,
    hooking: Hooking,
    setting: Setting,
    feedback: Feedback,
) -> list[Report]:
    """The report of one run, of all processes on rank 0 and none on the others."""
    from hookcli.engine.capture import capture_recipe
    from hookcli.engine.setting import META

    probe = make_probe()
    selection = Selection(processes.options)
    narrow = partial(selection.of, parameters=probe.watches_parameters)
    run = partial(capture_recipe, recipe, make_probe, hooking=hooking, narrow=narrow, feedback=feedback)
    shared = replace(step, share=processes.share(probe.needs_backward))
    reports = run(processes.setting(setting, probe.needs_backward), step=shared)
    selection.require_some()
    processes.remark_on(reports[0].meta, named_loss=not callable(step.loss))

    def whole() -> Report | None:
        """The shapes that one process would see with the whole batch; None if the model can't run on meta."""
        alone = replace(setting, device=META, weights=None)
        with suppress(HookcliError):
            return run(alone, step=step)[0]
        return None

    return processes.together(reports, whole)


def edits_of(options: Options) -> list[Edit]:
    """The edits that the options describe, for this process. Raises UsageError for one that can't be read."""
    from hookcli.hooks.edits.base import parse_edit

    return [parse_edit(text, options.seed + world().rank) for text in options.edit]


def setting_of(options: Options, train: bool, targets: bool = False) -> Setting:
    """The setting that the options describe. Raises UsageError for invalid ones."""
    from hookcli.engine.setting import Setting, parse_device
    from hookcli.sources.inputs import parse_dtype, parse_input

    data = data_of(options)
    dtype = parse_dtype(options.dtype) if options.dtype else None
    if dtype and not (dtype.is_floating_point or dtype.is_complex):
        raise UsageError(f"--dtype {options.dtype}: give a floating-point dtype, such as bfloat16", option="dtype")
    check_choice("--fill", options.fill, FILLS)
    return Setting(
        inputs=tuple(parse_input(text) for text in options.input),
        data=data,
        batch=options.batch_size,
        natural_batch=_TRAINING_BATCH if train else 1,
        fill=options.fill,
        seed=options.seed,
        weights=options.weights,
        strict=options.strict,
        train=train,
        targets=targets and train,
        device=parse_device(options.device),
        dtype=dtype,
    )


def probe_command(name: str) -> Callable[..., int]:
    """A command that runs this probe on a model."""

    def command(model: Model = DEFAULT_MODEL, *, options: Options) -> int:
        return inspect_model(model, registry.load("probes", name), options)

    return command

"""hookcli comm"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from hookcli.capabilities.comm.buckets import merge_ranks
from hookcli.capabilities.comm.layout import COLUMNS
from hookcli.commands.model import find_recipe
from hookcli.commands.option_fields import option, words_of
from hookcli.commands.options import DEFAULT_MODEL, Model, Options, all_but
from hookcli.commands.output import Output, remark
from hookcli.commands.probe_command import feedback_of, setting_of
from hookcli.commands.processes import columns_shown, several
from hookcli.commands.progress import salvaging
from hookcli.commands.run_options import OnePassOptions
from hookcli.errors import UsageError
from hookcli.hooks.option_values import COMM_HOOKS
from hookcli.system.torchrun import world

EXAMPLES = (
    "hookcli comm resnet50 --hook fp16",
    "hookcli comm resnet18 --hook allreduce,fp16,powersgd --rank-approximation 4",
    "hookcli comm net.py:Net --nproc 4 -i 8x3x32x32 --hook my_hooks.py:encoded",
)
FIRST = "hook input weights loss nproc rank_approximation steps format output"
_PROCESSES = 2  # the default without --nproc and torchrun


@dataclass(frozen=True)
class CommOptions:
    """Options of `hookcli comm` alone."""

    panel = "Communication"

    hook: list[str] = option(
        list,
        f"{', '.join(COMM_HOOKS)}; combinations such as fp16+powersgd; pkg.mod:fn or file.py:fn [allreduce]. "
        "Several are compared on the same gradients.",
        metavar="A,B,...",
    )
    rank_approximation: int = option(1, "PowerSGD: rank of its matrices.", metavar="N", min=1)
    warm_up: int = option(
        2, "PowerSGD: steps of plain allreduce first; more --steps lower its error.", metavar="STEPS", min=2
    )
    steps: int = option(3, "Steps to run; DDP rebuilds its buckets after the first.", metavar="N", min=1)
    no_sync: int = option(0, "Extra passes to accumulate under no_sync in each step.", metavar="N", min=0)
    bucket_cap_mb: float | None = option(
        None, "Size of a bucket in MiB [DDP's: 25, and 1 for the first].", metavar="MB", min=0, max=2**20
    )


def comm(
    model: Model = DEFAULT_MODEL,
    *,
    own: CommOptions,
    step: OnePassOptions,
    options: Annotated[Options, all_but("edit", "match", "type", "fastpath", "ops", "batches")],
) -> int:
    """Measure what DDP's communication hooks do to gradients.

    Shows, by bucket, the bytes that a rank passes to collectives, the time, statistics before and after, and the error
    against the exact mean over all ranks. Nothing is updated; every step has the same gradients. Runs in 2 processes,
    unless --nproc or torchrun says otherwise.
    """
    output = Output(options)  # so that a wrong format or folder fails before the work, not after
    if options.parallel != "ddp":
        raise UsageError(f"--parallel {options.parallel}: communication hooks are DDP's; FSDP2 has none")
    options = replace(options, nproc=options.nproc or (_PROCESSES if world().size == 1 else None))
    with salvaging(output) as progress:
        from hookcli.engine.prepare import prepare_run
        from hookcli.hooks.communication.comm_hooks import find_hook

        output.check_columns(columns_shown(COLUMNS, options))
        names = list(dict.fromkeys(words_of(own.hook or ["allreduce"])))
        hooks = [find_hook(name, own.rank_approximation, own.warm_up) for name in names]
        made = replace(step.make(), backward=True)
        with several(options, values=True) as processes:
            if processes is None or processes.group is None:
                raise UsageError("--nproc 1: communication needs 2 processes or more")
            if own.warm_up >= own.steps and any("powersgd" in name for name in names):
                remark(f"--warm-up {own.warm_up}: with --steps {own.steps} PowerSGD never starts", options)
            from hookcli.capabilities.comm.ddp import DDPSteps, communicate  # imports DDP: once the processes run

            steps = DDPSteps(own.steps, own.no_sync, own.bucket_cap_mb)
            setting = setting_of(options, options.train is not False, targets=True)
            setting, feedback = processes.setting(setting, True), feedback_of(options, progress, processes)
            run = prepare_run(find_recipe(model, options), setting, made, feedback)
            report = communicate(run, hooks, steps)
            reports = processes.gathered([report], lambda parts: merge_ranks([*parts.values()]))
    output.write(reports)
    return 0

"""hookcli comm"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookcli.choices import COMM_HOOKS
from hookcli.commands.common import setting_of, versions, write_partial
from hookcli.commands.differentiation import BackwardVector, LossName, chosen_loss
from hookcli.commands.options import DEFAULT_MODEL, Model, Options
from hookcli.commands.output import Output, remark, short_warnings
from hookcli.commands.progress import Progress
from hookcli.commands.recipe import find_recipe
from hookcli.errors import HookcliError, UsageError

if TYPE_CHECKING:
    from hookcli.comm_hooks import CommHook
    from hookcli.ddp import Plan
    from hookcli.prepare import Setting
    from hookcli.report import Report
    from hookcli.step import Step

EXAMPLES = (
    "hookcli comm resnet50 --hook fp16",
    "hookcli comm resnet18 --hook allreduce,fp16,powersgd --rank-approximation 4",
    "hookcli comm net.py:Net --input 8x3x32x32 --hook examples/fp16_allreduce.py:hook --bucket-cap-mb 1",
)
OPTIONS = tuple(f.name for f in fields(Options) if f.name not in ("edit", "match", "type", "fastpath"))
_PANEL = "Communication"


def _option(metavar: str, text: str, **settings: Any) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=_PANEL, **settings)


def comm(
    model: Model = DEFAULT_MODEL,
    *,
    hook: Annotated[
        list[str],
        _option(
            "A,B,...",
            f"{', '.join(COMM_HOOKS)}; fp16+powersgd and the like; pkg.mod:fn or file.py:fn [allreduce]. Several are "
            "compared on the same gradients.",
        ),
    ] = [],  # noqa: B006 - Typer wants a list for an option that is repeatable, and gives each call one of its own
    rank_approximation: Annotated[int, _option("N", "PowerSGD: the rank of its matrices.", min=1)] = 1,
    warm_up: Annotated[int, _option("STEPS", "PowerSGD: plain allreduce before it starts, 2 at least.")] = 2,
    steps: Annotated[int, _option("N", "Steps; DDP rebuilds its buckets after the first.", min=1)] = 3,
    no_sync: Annotated[int, _option("N", "Passes to accumulate under no_sync before each step's own.", min=0)] = 0,
    bucket_cap_mb: Annotated[
        float | None, _option("MB", "Of a bucket, in MiB [DDP's: 25, and 1 for the first].", min=0)
    ] = None,
    loss: LossName = None,
    backward_vector: BackwardVector = None,
    options: Options,
) -> int:
    """What DDP's communication hooks make of gradients, bucket by bucket.

    The bytes that a rank hands to collectives, the time, statistics before and after, and the error against the exact
    mean over all ranks. Nothing is updated; every step has the same gradients.
    """
    output = Output(options)  # finds a wrong format or folder before the work, not after
    try:
        with Progress(options.quiet) as progress, short_warnings(options), redirect_stdout(sys.stderr):
            progress.stage("importing torch")
            from hookcli.comm_hooks import find_hook
            from hookcli.ddp import Plan
            from hookcli.probes.comm import CommProbe
            from hookcli.step import Step

            output.check_columns(CommProbe.columns)
            names = [name.strip() for text in hook or ["allreduce"] for name in text.split(",") if name.strip()]
            hooks = [find_hook(name, rank_approximation, warm_up) for name in dict.fromkeys(names)]
            if any("powersgd" in h.name for h in hooks) and warm_up >= steps:
                remark(f"--warm-up {warm_up}: with --steps {steps} PowerSGD never starts", options)
            step = Step(backward=True, loss=chosen_loss(loss, backward_vector), vector=backward_vector)
            with _process_group():
                plan = Plan(steps, no_sync, bucket_cap_mb)
                reports = _merged(_communicate(model, hooks, plan, step, options, progress))
    except (HookcliError, KeyboardInterrupt) as error:
        write_partial(getattr(error, "reports", ()), output)
        raise
    output.write(reports)
    return 0


def _communicate(
    spec: str, hooks: Sequence[CommHook], plan: Plan, step: Step, options: Options, progress: Progress
) -> Report:
    """This rank's report."""
    import torch.distributed as dist

    from hookcli.ddp import communicate
    from hookcli.prepare import prepare

    train = True if options.train is None else options.train
    setting = setting_of(options, train, targets=True)
    recipe = find_recipe(spec, options)
    progress.stage(f"building {recipe.name} on {setting.device}")
    prepared = prepare(recipe, _own_data(setting))
    meta = {"input": prepared.described, "fill": setting.fill, "seed": setting.seed}
    if recipe.loss and not (step.loss or step.vector):
        step = replace(step, loss=recipe.loss)
        meta["loss"] = recipe.loss_name
    progress.stage(f"running {recipe.name} on {setting.device}")
    first = dist.get_rank() == 0
    return communicate(
        prepared.model,
        prepared.inputs,
        hooks,
        plan,
        step,
        name=recipe.name,
        meta=meta | dict(recipe.meta) | versions(),
        say=lambda text: remark(text, options) if first else None,
    )


# What follows is the process layer's: a group that is there, a rank's part of the batch, reports of all ranks.


@contextmanager
def _process_group() -> Iterator[None]:
    """The group that torchrun describes in the environment."""
    import torch.distributed as dist

    if "RANK" not in os.environ:
        raise UsageError("comm: needs processes to communicate: torchrun --nproc-per-node 2 -m hookcli comm ...")
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    try:
        yield
    finally:
        dist.destroy_process_group()


def _own_data(setting: Setting) -> Setting:
    """Each rank has its own input."""
    import torch.distributed as dist

    return replace(setting, seed=setting.seed + dist.get_rank())


def _merged(report: Report) -> list[Report]:
    import torch.distributed as dist

    from hookcli.buckets import merge_ranks

    reports: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(report, reports)
    return [merge_ranks(reports)] if reports else [report]

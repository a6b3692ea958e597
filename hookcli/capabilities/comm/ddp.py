"""Runs steps of DistributedDataParallel under communication hooks, each hook on the same gradients."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from hookcli.capabilities.comm.probe import CommProbe
from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import preserved
from hookcli.engine.run_info import finished
from hookcli.engine.setting import Feedback
from hookcli.errors import CommHookError, HookcliError, UsageError, UserCode
from hookcli.hooks.communication.comm_hooks import CALLBACK_FAILED, CommHook, check_works
from hookcli.hooks.communication.comm_payload import Payload
from hookcli.hooks.communication.ddp_observer import CommObserver, ExactMeans
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.distributed import ddp_logging_data
from hookcli.hooks.torch_private.dynamo import preload
from hookcli.table import Report
from hookcli.table.formatting import listed
from hookcli.table.meta import Meta

preload()  # the first DistributedDataParallel does it: not in the time of a run

_MIB = 2**20
_NAMED = 4  # parameters named in a message


_WAITS = (
    "but DDP waits for every parameter's: use the output in the loss, freeze them (requires_grad=False), or in "
    "training pass find_unused_parameters=True"
)


@dataclass(frozen=True, slots=True)
class DDPSteps:
    """The number of steps, unsynchronized backward passes (`no_sync`) before each, and the buckets' size in MiB."""

    steps: int = 3
    no_sync: int = 0
    bucket_cap_mb: float | None = None

    @property
    def meta(self) -> Meta:
        """The entries of a report's `meta` for these steps."""
        return {"steps": self.steps, "no_sync": self.no_sync, "bucket_cap_mb": self.bucket_cap_mb}


def check_model_and_hooks(run: PreparedRun, hooks: Sequence[CommHook]) -> None:
    """Pass on what hooks remark. Raises UsageError for a model without gradients, or a hook that is broken upstream."""
    if not any(p.requires_grad for p in run.model.parameters()):
        raise UsageError("nothing to reduce: the model has no parameter that requires a gradient")
    for hook in hooks:
        check_works(hook)
        if hook.remark:
            run.feedback.remark(hook.remark)


def communicate(run: PreparedRun, hooks: Sequence[CommHook], steps: DDPSteps) -> Report:
    """Run DDP's steps under each hook, in an initialized process group, and return this rank's report.

    Every step, of every hook, starts from the same weights, buffers and random state, so that it has the same
    gradients: steps differ only by what a hook does (warm-up, error feedback) or DDP, which rebuilds its buckets after
    the first. Gradients, buffers and random state are afterwards as they were; DDP gives every rank the weights of the
    first.

    Raises UsageError where DDP can't work (no parameter, one without a gradient) or a hook is broken upstream,
    CommHookError where a hook fails, ModelError where the model does; their `reports` hold what was seen until then.
    """
    model, probe = run.model, CommProbe()
    check_model_and_hooks(run, hooks)
    steps = _with_one_bucket(model, hooks, steps, run.feedback)
    info: Meta = {**run.info, "processes": dist.get_world_size()}
    logged: dict[str, object] = {}
    started = time.perf_counter()

    def report(complete: bool) -> Report:
        meta: Meta = {**info, "seconds": time.perf_counter() - started, "complete": complete}
        return probe.report(run.name, {**finished(meta), **steps.meta, "ddp": logged})

    group = dist.new_group()  # for the exact means, so that their collectives don't mix with the hooks'
    assert isinstance(group, ProcessGroup)  # every rank is in it
    fqns = {id(p): fqn for fqn, p in model.named_parameters()}
    means = ExactMeans(group, wanted=not all(hook.exact for hook in hooks))
    try:
        for hook in hooks:
            with UserCode(partial(failure.crashed, model, info)), preserved(model, run.inputs):
                observer = CommObserver(hook, fqns, probe, Payload(means.group), means)
                logged[hook.name] = _steps_under(run, steps, info, observer)
    except HookcliError as error:
        error.reports = (report(complete=False),)
        raise
    finally:
        dist.destroy_process_group(group)
    for fqn, parameter in model.named_parameters():
        if not parameter.requires_grad:
            probe.skip(fqn, "frozen (requires_grad=False): in no bucket")
    return report(complete=True)


def _with_one_bucket(model: nn.Module, hooks: Sequence[CommHook], steps: DDPSteps, feedback: Feedback) -> DDPSteps:
    """The steps, with one bucket if several would hang. Raises UsageError if one bucket can't hold all gradients."""
    chained = [hook.name for hook in hooks if hook.chained]
    if not chained or dist.get_backend() != "gloo":
        return steps
    trained = [p for p in model.parameters() if p.requires_grad]
    kinds = {(p.dtype, p.device) for p in trained}
    hangs = f"{', '.join(chained)}: would hang on gloo with more than one bucket (it waits within callbacks)"
    if len(kinds) > 1:
        raise UsageError(f"--hook {hangs}, and parameters of several dtypes or devices never share one")
    size = sum(p.numel() * p.element_size() for p in trained)
    if size <= min(steps.bucket_cap_mb or 1, 1) * _MIB:  # DDP's own first bucket holds them all
        return steps
    feedback.remark(f"{hangs}; one bucket is used")
    return replace(steps, bucket_cap_mb=size // _MIB + 1)


def _steps_under(run: PreparedRun, steps: DDPSteps, info: Meta, observer: CommObserver) -> object:
    """Run the steps under one hook and return what DDP logged."""
    args, kwargs = arguments(run.inputs)
    cap: dict[str, Any] = {} if steps.bucket_cap_mb is None else {"bucket_cap_mb": steps.bucket_cap_mb}
    ddp = DistributedDataParallel(run.model, **cap)
    observer.register(ddp)
    for number in range(steps.steps):
        observer.begin(number)
        run.feedback.stage(f"running {run.name} under {observer.hook.name}, step {number + 1} of {steps.steps}")
        # Each step starts from the same state, including the random state.
        with preserved(run.model, run.inputs), observer.payload.counting():
            try:
                with HookSession(ddp) as session:
                    run.feedback.follow(session.position)
                    if steps.no_sync:
                        with ddp.no_sync():
                            replace(run.step, passes=steps.no_sync).run(session, args, kwargs, info)
                    run.step.run(session, args, kwargs, info)
            except Exception as error:
                failed = observer.failure or error
                if isinstance(failed, CommHookError) and failed.__cause__:
                    cause = CALLBACK_FAILED.sub("", failure.describe(failed.__cause__))
                    raise CommHookError(f"{failed}: {cause}") from error
                raise failed from error
            without = [fqn for fqn, p in run.model.named_parameters() if p.requires_grad and p.grad is None]
            if without:  # of which DDP complains only at the next step
                raise UsageError(f"no gradient reached {listed(without, _NAMED)}, {_WAITS}")
    return ddp_logging_data(ddp)

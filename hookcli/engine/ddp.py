"""Steps of DistributedDataParallel under communication hooks, each hook on the same gradients."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch._dynamo  # noqa: F401 - the first DistributedDataParallel imports it, for seconds: not in the time of a run
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from hookcli.engine import failure
from hookcli.engine.preserve import preserved
from hookcli.engine.run_info import describe_run
from hookcli.engine.step import Step
from hookcli.errors import CommHookError, HookcliError, ModelError, UsageError, UserCode
from hookcli.hooks.comm import CommObserver, Payload
from hookcli.hooks.comm_hooks import CommHook, check_works
from hookcli.hooks.session import HookSession
from hookcli.probes.comm import CommProbe
from hookcli.report import Report

_MIB = 2**20
_NAMED = 4  # parameters in a message
_WRAPPED = re.compile(r"(RuntimeError: )?Got the following error when running the callback: ")


@dataclass(frozen=True, slots=True)
class Plan:
    """How often, and in what buckets: `no_sync` backward passes are accumulated before each that is synchronized.

    `bucket_cap_mb` None is DDP's own choice.
    """

    steps: int = 3
    no_sync: int = 0
    bucket_cap_mb: float | None = None


def _silent(text: str) -> None:
    """Nobody listens."""


def communicate(
    model: nn.Module,
    inputs: tuple[Any, ...] | dict[str, Any],
    hooks: Sequence[CommHook],
    plan: Plan,
    step: Step,
    *,
    name: str | None = None,
    meta: Mapping[str, Any] | None = None,
    say: Callable[[str], object] = _silent,
    stage: Callable[[str], object] = _silent,
) -> Report:
    """Run `plan.steps` steps of DDP under each hook, in an initialized process group, and return this rank's report.

    Every step, of every hook, starts from the same weights, buffers and random state, so that it has the same
    gradients: what differs between steps is a hook's own doing (warm-up, error feedback) or DDP's, which rebuilds its
    buckets after the first. Gradients, buffers and random state are afterwards as they were before; DDP makes the first
    rank's weights those of all. `say` gets remarks, `stage` what goes on.

    Raises UsageError where DDP can't work (no parameter, one without a gradient) or a hook is broken upstream,
    CommHookError where a hook fails, ModelError where the model does; their `reports` hold what was seen until then.
    """
    if not any(p.requires_grad for p in model.parameters()):
        raise UsageError("nothing to reduce: the model has no parameter that requires a gradient")
    for hook in hooks:
        check_works(hook)
        if hook.remark:
            say(hook.remark)
    plan = _with_one_bucket(model, hooks, plan, say)
    probe = CommProbe()
    described = {**describe_run(model, inputs), **(meta or {}), "processes": dist.get_world_size()}
    described |= {"steps": plan.steps, "no_sync": plan.no_sync, "bucket_cap_mb": plan.bucket_cap_mb, "ddp": {}}
    started = time.perf_counter()

    def report(complete: bool) -> Report:
        meta = described | {"seconds": time.perf_counter() - started, "complete": complete}
        return probe.report(name or type(model).__name__, meta)

    def crashed(error: BaseException) -> ModelError:
        said = failure.explain(error, model)
        described["error"] = said.partition("\n")[0]
        return ModelError(said)

    with _reference() as reference:
        try:
            for hook in hooks:
                stage(f"running {name} under {hook.name}")
                with UserCode(crashed), preserved(model, inputs):
                    _Run(model, inputs, hook, plan, step, probe, reference, described).go()
        except HookcliError as error:
            error.reports = (report(complete=False),)
            raise
    for fqn, parameter in model.named_parameters():
        if not parameter.requires_grad:
            probe.skip(fqn, "frozen (requires_grad=False): in no bucket")
    return report(complete=True)


@contextmanager
def _reference() -> Iterator[ProcessGroup]:
    """A group for the exact means, whose collectives can't come between those of hooks."""
    group = dist.new_group()
    assert isinstance(group, ProcessGroup)  # every rank is in it
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def _with_one_bucket(model: nn.Module, hooks: Sequence[CommHook], plan: Plan, say: Callable[[str], object]) -> Plan:
    """The plan, with one bucket where more would hang. Raises UsageError where there can't be one alone."""
    chained = [hook.name for hook in hooks if hook.chained]
    if not chained or dist.get_backend() != "gloo":
        return plan
    trained = [p for p in model.parameters() if p.requires_grad]
    kinds = {(p.dtype, p.device) for p in trained}
    hangs = f"{', '.join(chained)}: would hang on gloo with more than one bucket (it waits within callbacks)"
    if len(kinds) > 1:
        raise UsageError(f"--hook {hangs}, and parameters of several dtypes or devices never share one")
    size = sum(p.numel() * p.element_size() for p in trained)
    if size <= min(plan.bucket_cap_mb or 1, 1) * _MIB:  # DDP's own first bucket holds them all
        return plan
    say(f"{hangs}; one bucket is used")
    return Plan(plan.steps, plan.no_sync, size // _MIB + 1)


@dataclass
class _Run:
    """One hook's steps."""

    model: nn.Module
    inputs: tuple[Any, ...] | dict[str, Any]
    hook: CommHook
    plan: Plan
    step: Step
    probe: CommProbe
    reference: ProcessGroup
    meta: dict[str, Any]

    def go(self) -> None:
        fqns = {id(p): fqn for fqn, p in self.model.named_parameters()}
        cap = {} if self.plan.bucket_cap_mb is None else {"bucket_cap_mb": self.plan.bucket_cap_mb}
        ddp = DistributedDataParallel(self.model, **cap)  # type: ignore[arg-type]
        observer = CommObserver(self.hook, fqns, self.probe, Payload(self.reference), self.reference)
        observer.register(ddp)
        for number in range(self.plan.steps):
            observer.begin(number)
            # Each step from the same state; what a hook does to the random state is undone, too.
            with preserved(self.model, self.inputs), observer.payload.counting():
                self._one(ddp, observer)
        self.meta["ddp"][self.hook.name] = ddp._get_ddp_logging_data()

    def _one(self, ddp: DistributedDataParallel, observer: CommObserver) -> None:
        args, kwargs = ((), self.inputs) if isinstance(self.inputs, dict) else (self.inputs, {})
        try:
            with HookSession(ddp) as session:
                if self.plan.no_sync:
                    with ddp.no_sync():
                        self.step.run(session, args, kwargs, self.plan.no_sync, self.meta)
                self.step.run(session, args, kwargs, 1, self.meta)
        except Exception as error:
            raise _explained(observer.failure or error) from error
        self._check_gradients()

    def _check_gradients(self) -> None:
        """DDP waits for every parameter, and tells only of the next step that it waited in vain."""
        without = [fqn for fqn, p in self.model.named_parameters() if p.requires_grad and p.grad is None]
        if not without:
            return
        more = f" and {len(without) - _NAMED} more" if without[_NAMED:] else ""
        raise UsageError(
            f"no gradient reached {', '.join(without[:_NAMED])}{more}, and DDP waits for every parameter's: use the "
            "output in the loss, freeze them (requires_grad=False), or in training pass find_unused_parameters=True"
        )


def _explained(error: Exception) -> Exception:
    """A hook's failure with what it failed of."""
    cause = error.__cause__
    if not (isinstance(error, CommHookError) and cause):
        return error
    return CommHookError(f"{error}: {_WRAPPED.sub('', failure.describe(cause))}")

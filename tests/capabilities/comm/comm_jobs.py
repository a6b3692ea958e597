"""Jobs of ranks in the tests of communication hooks."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from support import untouched
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hookcli.capabilities.comm.ddp import DDPSteps, communicate
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.setting import Feedback
from hookcli.engine.step import Step
from hookcli.errors import UsageError
from hookcli.hooks.communication.comm_hooks import CommHook, check_works, find_hook
from hookcli.table import Report


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(40, 60), nn.Dropout(), nn.BatchNorm1d(60), nn.Linear(60, 30), nn.Linear(30, 7)
    return nn.Sequential(*layers).to(dtype)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor]:
    """Other data on each rank."""
    return (torch.randn(6, 40, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype),)


class Unused(nn.Module):
    """Has a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.aux = nn.Linear(40, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def local_gradients(passes: int = 1) -> dict[str, Tensor]:
    """This rank's own gradients, by plain PyTorch, from the random state that `run` begins with."""
    net = model()
    torch.manual_seed(5)
    for _ in range(passes):
        squares(net(*inputs())).backward()
    return {fqn: p.grad.double() for fqn, p in net.named_parameters()}


def squares(output: Tensor) -> Tensor:
    return output.square().sum()


def prepared(net: nn.Module, given: tuple[Tensor], loss: Any = None) -> PreparedRun:
    return PreparedRun.of(net, given, Step(backward=True, loss=loss))


def run(hooks: list[str], net: nn.Module | None = None, **plan: Any) -> Report:
    """A rank's report; asserts that nothing is left behind."""
    net = net or model()
    said: list[str] = []
    torch.manual_seed(5)
    with untouched(net):
        found = [find_hook(hook) for hook in hooks]
        feedback = Feedback(remark=said.append)
        report = communicate(replace(prepared(net, inputs(), squares), feedback=feedback), found, DDPSteps(**plan))
    return Report(**{**vars(report), "meta": {**report.meta, "said": said}})


def run_and_gradients(hooks: list[str], **plan: Any) -> tuple[Report, dict[str, Tensor]]:
    return run(hooks, **plan), local_gradients(plan.get("no_sync", 0) + 1)


def run_unused() -> Report:
    return run(["fp16"], Unused())


def run_functions(names: list[str], **plan: Any) -> list[Report | str]:
    """Each of these hooks in turn, or what it raised; a rank fails with the others, so that none waits."""
    said: list[Report | str] = []
    for name in names:
        try:
            said.append(run([f"own_hooks:{name}"], **plan))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


class Drifts(nn.Module):
    """Has other gradients in each step, as a model with a schedule of its own does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(40, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.calls * self.fc(x)


def run_drifting() -> Report:
    return communicate(prepared(Drifts(), inputs(), squares), [find_hook("fp16")], DDPSteps(2))


def run_half() -> Report:
    """Gradients in bfloat16, whose plain allreduce is not exact."""
    found = [find_hook("allreduce")]
    return communicate(prepared(model(torch.bfloat16), inputs(torch.bfloat16)), found, DDPSteps(2))


def run_huge() -> Report:
    """Gradients above what float16 holds."""
    net = model()
    return communicate(prepared(net, inputs(), lambda y: y.sum() * 1e6), [find_hook("fp16")], DDPSteps(1))


def results(spec: str, steps: int = 1) -> Tensor:
    """The gradients that DDP leaves under a hook, without hookcli's observer."""
    net, hook = model(), find_hook(spec)
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(hook.make_state(), hook.function)
    for _ in range(steps):
        net.zero_grad()
        torch.manual_seed(5)
        ddp(*inputs()).sum().backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def two_results(first: str, second: str) -> tuple[Tensor, Tensor]:
    return results(first), results(second)


def upstream_batched() -> str:
    """What PyTorch's own batched PowerSGD does in its first compressed step, by itself."""
    net, hook = model(), find_hook("batched-powersgd")
    ddp = DistributedDataParallel(net, bucket_cap_mb=100)
    ddp.register_comm_hook(hook.make_state(), hook.function)
    try:
        for _ in range(4):
            ddp(*inputs()).sum().backward()
    except AssertionError:
        return "AssertionError"
    return "works"


def works(spec: str) -> bool:
    """What hookcli's own trial says of a hook."""
    try:
        check_works(find_hook(spec))
    except UsageError:
        return False
    return True


def upstream_two_buckets(spec: str) -> str:
    """A chained hook on more than one bucket; hangs, as long as upstream is as it is."""
    wide = nn.Sequential(*(nn.Linear(100, 100) for _ in range(8)))
    hook = find_hook(spec)
    ddp = DistributedDataParallel(wide, bucket_cap_mb=0.05)
    ddp.register_comm_hook(hook.make_state(), hook.function)
    for _ in range(40):
        ddp(torch.randn(4, 100)).sum().backward()
    return "works"


def bf16_without_cuda() -> tuple[str, Report]:
    """What PyTorch says of bf16 where it was built without CUDA, and what hookcli makes of it."""
    with patch.object(torch.version, "cuda", None):
        try:
            results("bf16")
            said = "works"
        except TypeError as error:
            said = str(error)
        return said, run(["bf16"])


def left_behind() -> tuple[bool, int, Tensor, Tensor]:
    """Whether the DDP wrapper is gone, and how often a hook fires in a plain step afterwards."""
    wrappers: list[weakref.ref[Any]] = []
    calls = 0

    def counted(state: Any, bucket: Any) -> Any:
        nonlocal calls
        calls += 1
        return find_hook("fp16").function(state, bucket)

    made = DistributedDataParallel.register_comm_hook

    def noting(ddp: Any, *args: Any) -> None:
        wrappers.append(weakref.ref(ddp))
        made(ddp, *args)

    net = model()
    with patch.object(DistributedDataParallel, "register_comm_hook", noting):
        communicate(prepared(net, inputs()), [CommHook("counted", counted)], DDPSteps())
    gc.collect()
    during, calls = calls, 0
    torch.manual_seed(5)
    squares(net(*inputs())).backward()
    found = torch.cat([p.grad.flatten().double() for p in net.parameters()])
    gone = all(ref() is None for ref in wrappers) and len(wrappers) == 1 and during > 0
    return gone, calls, found, torch.cat([g.flatten() for g in local_gradients().values()])

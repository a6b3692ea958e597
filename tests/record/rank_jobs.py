"""Trainings on ranks, each of which records its part; and the same training in one process."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import hookcli
from hookcli.record.file.writer import RecordWriter
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.recording_plan import RecordingPlan, given_options
from hookcli.record.record_sink import RecordSink, new_header
from hookcli.registry.capability import recorder_options

BATCH, STEPS = 8, 3


class Net(nn.Module):
    """A batch's items do not mix; `positions` are the same for every batch; it returns its loss, too."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(3, 4)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.head(self.body(x[:, None] + self.positions(torch.arange(3)))).mean(1)
        return y, y.square().mean()


def batch(step: int) -> Tensor:
    return torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(step))


def train(wrap: Callable[[nn.Module], nn.Module], share: slice, steps: int = STEPS, bad: int | None = None) -> Any:
    """Train on a share of each batch. `bad`: the step whose inputs are NaN."""
    torch.manual_seed(0)
    model = wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        x = batch(step)[share]
        model(x * torch.nan if step == bad else x)[1].backward()
        optimizer.step()
    with torch.no_grad():
        model(batch(100)[share])
    return [getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for p in model.parameters()]


def recorded(path: Path, rank: int, ranks: int, train: Callable[[], Any], **plan: Any) -> Any:
    """The training, recorded in a file."""
    path.parent.mkdir(exist_ok=True)
    header = replace(new_header("train.py", ["train.py"], 1), rank=rank, ranks=ranks)
    sink = RecordSink(path, lambda header: RecordWriter(path).begun(header), header, lambda text: None)
    of_parts = {name: plan.pop(name) for name in recorder_options() if name in plan}
    plan = {"every": 1, "of_parts": given_options(of_parts)} | plan
    observer = Observer(RecordingPlan(**plan), sink).start()
    try:
        found = train()
    finally:
        observer.stop()
    sink.finish(0, None, observer.totals())
    return found


def share(spread: int = 1) -> slice:
    """This rank's share of a batch; `spread`: how many ranks have one together."""
    each, own = BATCH // (dist.get_world_size() // spread), dist.get_rank() // spread
    return slice(own * each, (own + 1) * each)


SPREAD: dict[str, int | None] = {"tp": None, "tp_dtensor": None, "fsdp_tp": 2}
"""For each kind with tensor parallel, the ranks that have a batch together; None: all."""


def wrapper(kind: str) -> Callable[[nn.Module], nn.Module]:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    size = dist.get_world_size()
    if kind in SPREAD:
        spread = SPREAD[kind] or size
        two = init_device_mesh("cpu", (size // spread, spread), mesh_dim_names=("dp", "tp"))
        own = kind != "tp_dtensor"
        plan = {"body.0": ColwiseParallel(use_local_output=own), "head": RowwiseParallel()}

        def spread_out(model: nn.Module) -> nn.Module:
            parallelize_module(model, two["tp"], plan)
            if kind == "fsdp_tp":
                fully_shard(model.body[0], mesh=two["dp"])
                return fully_shard(model, mesh=two["dp"])
            return model

        return spread_out
    shape = {"fsdp": (size,), "hsdp": (2, size // 2)}[kind]

    def sharded(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        fully_shard(model.body[0], mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return sharded


def in_ranks(folder: str, kind: str) -> tuple[list[Tensor], list[Tensor]]:
    """This rank's final weights, recorded and not recorded."""
    mine = share(SPREAD.get(kind, 1) or dist.get_world_size())
    plain = train(wrapper(kind), mine)
    rank, path = dist.get_rank(), Path(folder)
    seen = recorded(path / f"rank{rank}.jsonl", rank, dist.get_world_size(), lambda: train(wrapper(kind), mine))
    return seen, plain


class Normed(nn.Module):
    """Mixes no positions of a sequence, whose parts tensor-parallel ranks may therefore normalize apart."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.up(self.norm(x)))
        return y


def of_sequence(folder: str) -> None:
    """A step of sequence parallel: each rank has its part of the sequences."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    rank, size = dist.get_rank(), dist.get_world_size()
    plan = {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()}

    def step() -> None:
        torch.manual_seed(0)
        model = parallelize_module(Normed(), init_device_mesh("cpu", (size,)), plan)
        normed_step(model, slice(3 * rank, 3 * rank + 3))

    recorded(Path(folder) / f"rank{rank}.jsonl", rank, size, step)


def normed_step(model: nn.Module, part: slice) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))[:, part]).square().mean().backward()
    optimizer.step()


def uneven(folder: str) -> None:
    """Ranks without collectives; rank 1 makes more steps, and a NaN comes first there."""
    rank, path = dist.get_rank(), Path(folder)
    plan = {"first_bad": "report"}
    work = lambda: train(lambda model: model, share(), STEPS + rank, bad=2 - rank)  # noqa: E731
    recorded(path / f"rank{rank}.jsonl", rank, dist.get_world_size(), work, **plan)


def killed(folder: str) -> None:
    """Rank 1 dies in its second step, once the files hold the first one of both: its death ends rank 0 at once."""
    rank, path = dist.get_rank(), Path(folder)

    def written() -> bool:
        parts = [path / f"rank{each}.jsonl" for each in range(dist.get_world_size())]
        return all(part.exists() and re.search(r'"step":0,.*\n', part.read_text()) for part in parts)

    def die(module: nn.Module, args: Any) -> None:
        nonlocal calls
        calls += 1
        if rank == 1 and calls == 2:
            while not written():  # at most the job's time limit
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    calls = 0

    def fragile(model: nn.Module) -> nn.Module:
        model.head.register_forward_pre_hook(die)
        return model

    recorded(path / f"rank{rank}.jsonl", rank, dist.get_world_size(), lambda: train(fragile, share()))


def watched(folder: str, **settings: Any) -> str:
    """Each rank records its own part by itself; the record's path."""
    os.chdir(folder)
    recordings = []

    def wrap(model: nn.Module) -> nn.Module:
        recordings.append(hookcli.watch(model, every=1, **settings).start())
        return nn.parallel.DistributedDataParallel(model)

    train(wrap, share())
    recordings[0].stop()
    return str(recordings[0].record)

"""Private names of torch.distributed and of GradScaler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.distributed import GradBucket as GradBucket  # type: ignore[attr-defined]  # public, though not in __all__
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from hookcli.tensors.torch_private import caller, private

FutureBase: type = private(
    "torch._C", "Future", object, "a communication hook that returns no Future fails in words of PyTorch's"
)
"""The base class of futures: PyTorch's collectives return it, not its subclass `torch.futures.Future`."""


def process_groups() -> set[ProcessGroup]:
    """The process groups of this process."""
    lost = "payloads of process groups that communication hooks create are not counted"
    world = private("torch.distributed.distributed_c10d", "_world", None, lost)
    return set(world.pg_map) if world is not None else {group for group in (dist.group.WORLD,) if group is not None}


def group_name() -> str:
    """A text shared by all ranks of the default process group, and by no other group; "" if its store has none.

    The first rank that asks leaves it in the store. No rank waits for another, as in a collective.
    """
    lost = "ranks of two groups that a program starts one after the other may share a record"
    store_of = private("torch.distributed.distributed_c10d", "_get_default_store", None, lost)
    try:
        return str(store_of().compare_set("hookcli", "", uuid4().hex).decode()) if store_of else ""
    except Exception:  # a store of another kind, or one whose server has ended
        return ""


ddp_logging_data: Callable[[DistributedDataParallel], dict[str, object]] = caller(
    DistributedDataParallel, "_get_ddp_logging_data", lambda ddp: {}, "the report does not show DDP's buckets"
)
"""DDP's data about a model: sizes of buckets, backend, versions."""

_WAITS = "reading a GradScaler's scale waits for the GPU"
loss_scale: Callable[[GradScaler], Tensor] = caller(
    GradScaler, "_get_scale_async", lambda scaler: torch.tensor(scaler.get_scale()), _WAITS
)
"""A GradScaler's scale as a tensor on its device; `get_scale()` would wait for the device."""


@contextmanager
def fake_processes(count: int) -> Iterator[Any]:
    """A DeviceMesh of so many processes in this block: this one, and others that do not exist.

    Collectives return tensors of the right shapes, without values. Yields None where this PyTorch lacks such groups, or
    this process is in a group already.
    """
    lost = "models are not divided among processes on the meta device"
    store = private("torch.testing._internal.distributed.fake_pg", "FakeStore", None, lost)
    if store is None or dist.is_initialized():
        yield None
        return
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("fake", store=store(), rank=0, world_size=count)
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()

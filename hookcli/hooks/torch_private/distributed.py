"""Private names of torch.distributed and of GradScaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


ddp_logging_data: Callable[[DistributedDataParallel], dict[str, Any]] = caller(
    DistributedDataParallel,
    "_get_ddp_logging_data",
    lambda ddp: {},
    "the report does not show DDP's buckets",
)
"""DDP's data about a model: sizes of buckets, backend, versions."""


loss_scale: Callable[[GradScaler], Tensor] = caller(
    GradScaler,
    "_get_scale_async",
    lambda scaler: torch.tensor(scaler.get_scale()),
    "reading a GradScaler's scale waits for the GPU",
)
"""A GradScaler's scale as a tensor on its device; `get_scale()` would wait for the device."""

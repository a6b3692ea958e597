"""The observer of DDP's communication hooks: around a hook, since PyTorch takes one for a model and removes none."""

# Without `from __future__ import annotations`: PyTorch compares a communication hook's annotations as they are, and
# refuses text.

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from hookcli.errors import CommHookError, UserCode
from hookcli.hooks.comm_hooks import CommHook
from hookcli.hooks.comm_payload import Payload

__all__ = ["BucketListener", "CommObserver", "Exchange", "Payload"]

_HALF = (torch.float16, torch.bfloat16)


class Moment:
    """A point in time; on an accelerator in its stream, to be read after the run."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.at: Any = time.perf_counter()
        if device.type not in ("cpu", "meta"):
            self.at = torch.Event(device=device, enable_timing=True)
            self.at.record()

    def seconds_to(self, later: "Moment") -> float:
        if isinstance(self.at, float):
            return float(later.at - self.at)
        later.at.synchronize()
        return float(self.at.elapsed_time(later.at)) / 1000


@dataclass(slots=True, eq=False)
class Exchange:
    """One bucket of gradients on its way: what it holds, and what became of it.

    `order` counts the buckets of a step as they got ready. `payload` are the bytes that this rank handed to
    collectives for it, as far as `uncounted` is empty.
    """

    hook: str
    step: int
    bucket: int
    order: int
    fqns: tuple[str, ...]
    elements: int
    size: int
    payload: int = 0
    uncounted: str = ""
    ready: Moment | None = None
    done: Moment | None = None

    def seconds(self) -> float:
        """From the call of the hook to the end of its Future."""
        assert self.ready and self.done
        return self.ready.seconds_to(self.done)

    def __str__(self) -> str:
        ends = self.fqns if len(self.fqns) < 3 else (self.fqns[0], "...", self.fqns[-1])
        return f"bucket {self.bucket} ({' '.join(ends)})"


class BucketListener(Protocol):
    """Who is shown the tensors, on whichever thread; none may be kept.

    `ready` before the hook gets the bucket; `done` with the hook's result and the exact mean over all ranks.
    """

    def ready(self, exchange: Exchange, before: Tensor) -> None: ...
    def done(self, exchange: Exchange, after: Tensor, exact: Tensor) -> None: ...


@dataclass
class CommObserver:
    """Registers `hook` on a DDP wrapper, with itself around it. `fqns` names the model's parameters by id.

    The exact mean comes from an allreduce of a clone, over the group `reference`, before the hook is called: on a group
    of its own it can't come between the collectives of hooks that issue more in callbacks. The `allreduce` hook gives
    that mean itself, bit for bit. What goes wrong stays in `failure`.
    """

    hook: CommHook
    fqns: Mapping[int, str]
    look: BucketListener
    payload: Payload
    reference: ProcessGroup
    step: int = 0
    order: int = 0
    failure: Exception | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _clones: dict[tuple[str, ...], Tensor] = field(default_factory=dict)

    def register(self, ddp: DistributedDataParallel) -> None:
        ddp.register_comm_hook(self.hook.make_state(), self.observe)

    def begin(self, step: int) -> None:
        """A step begins: its buckets are counted anew."""
        self.step, self.order = step, 0
        if step == 1:  # DDP has rebuilt its buckets
            self._clones.clear()

    def observe(self, state: object, bucket: GradBucket) -> Future[Tensor]:
        buffer = bucket.buffer()
        fqns = tuple(self.fqns[id(p)] for p in bucket.parameters())
        size = buffer.numel() * buffer.element_size()
        exchange = Exchange(self.hook.name, self.step, bucket.index(), self.order, fqns, buffer.numel(), size)
        self.order += 1
        try:
            self.look.ready(exchange, buffer)
            exact = self._exact(fqns, buffer)
            exchange.ready = Moment(buffer.device)
            with self.payload.within(exchange):
                future = self._called(exchange, state, bucket)
            return future.then(partial(self._finish, exchange, exact, buffer.shape))
        except Exception as error:
            self._fail(error)
            raise

    def _exact(self, fqns: tuple[str, ...], buffer: Tensor) -> Tensor | None:
        """The mean over all ranks, in at least float32; None where the hook itself gives it."""
        half = buffer.dtype in _HALF
        if self.hook.exact and not half:
            dist.barrier(self.reference)  # the exact mean has the ranks meet, too: times are to be comparable
            return None
        clone = self._clones.get(fqns)
        if clone is None:  # kept for the next step: fresh memory costs as much as the copy
            clone = self._clones[fqns] = torch.empty_like(buffer, dtype=torch.float32 if half else None)
        dist.all_reduce(clone.copy_(buffer).div_(self.reference.size()), group=self.reference)
        return clone

    def _called(self, exchange: Exchange, state: object, bucket: GradBucket) -> Future[Tensor]:
        with UserCode(lambda error: CommHookError(f"{self.hook.name} failed on {exchange}")):
            future = self.hook.function(state, bucket)
        if not isinstance(future, torch._C.Future):
            raise CommHookError(
                f"{self.hook.name} returned {_what(future)} for {exchange}: a communication hook returns a "
                "torch.futures.Future of a tensor, such as dist.all_reduce(..., async_op=True).get_future().then(...)"
            )
        return future

    def _finish(self, exchange: Exchange, exact: Tensor | None, shape: torch.Size, future: Future[Any]) -> Tensor:
        try:
            with UserCode(lambda error: CommHookError(f"{self.hook.name} failed in a callback for {exchange}")):
                result = future.value()
            exchange.done = Moment(torch.device("cpu") if exchange.ready is None else exchange.ready.device)
            self._check(exchange, result, shape)
            self.payload.close(exchange)
            self.look.done(exchange, result, result if exact is None else exact)
        except Exception as error:
            self._fail(error)
            raise
        return result  # type: ignore[no-any-return]

    def _check(self, exchange: Exchange, result: Any, shape: torch.Size) -> None:
        """What PyTorch would take silently, or end the process for, is told."""
        where = f"{self.hook.name}, {exchange}: its Future resolves to {_what(result)}"
        if isinstance(result, list):
            raise CommHookError(f"{where}: PyTorch takes one tensor, so end with .then(lambda fut: fut.value()[0])")
        if not isinstance(result, Tensor) or result.shape != shape:
            raise CommHookError(f"{where}: it must be a tensor of the bucket's shape, {tuple(shape)}")
        if not (result.is_floating_point() or result.is_complex()):
            raise CommHookError(f"{where}, which would be taken for gradients as it is: decode it in .then first")

    def _fail(self, error: Exception) -> None:
        """Keep the first error: PyTorch hands on a text of it, or another error that follows from it."""
        with self._lock:
            self.failure = self.failure or error


def _what(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    return "None" if value is None else f"a {type(value).__name__}"

"""Observes a communication hook of DDP by wrapping it: PyTorch takes one hook per model, and can't remove it."""

# No `from __future__ import annotations`: PyTorch checks a communication hook's annotations, and rejects strings.

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from hookcli.errors import CommHookError, UserCode
from hookcli.hooks.clock import ProgramClock, Timer, timer_for
from hookcli.hooks.communication.comm_hooks import CommHook
from hookcli.hooks.communication.comm_payload import Exchange, Payload
from hookcli.hooks.torch_private.distributed import FutureBase, GradBucket


class BucketListener(Protocol):
    """Gets each bucket's tensors, on any thread, and keeps none of them.

    `ready` is called before the hook gets the bucket; `done` with the hook's result and the exact mean over all ranks.
    """

    def ready(self, exchange: Exchange, before: Tensor) -> None:
        """Take a bucket before the hook gets it."""

    def done(self, exchange: Exchange, after: Tensor, exact: Tensor) -> None:
        """Take the hook's result and the exact mean."""


HALF = (torch.float16, torch.bfloat16)


class ExactMeans:
    """The exact means by parameter, in at least float32. They are taken once: all steps have the same gradients.

    A mean is taken by an allreduce over `group`, which is no one else's, so that it can't get between the collectives
    that some hooks issue in callbacks. Later steps, also of other hooks and with other buckets, look it up. `wanted`: a
    hook will look up means, so those that another hook returns are kept, too.
    """

    def __init__(self, group: ProcessGroup, wanted: bool = True) -> None:
        self.group = group
        self._wanted = wanted
        self._lock = threading.Lock()
        self._of_parameters: dict[str, Tensor] = {}
        self._of_buckets: dict[tuple[str, ...], Tensor] = {}

    def of(self, fqns: tuple[str, ...], sizes: Sequence[int], buffer: Tensor) -> Tensor:
        """The mean of a bucket with these parameters of these sizes; computed with the other ranks if it is new."""
        with self._lock:
            if fqns not in self._of_buckets:
                parts = [self._of_parameters[fqn] for fqn in fqns if fqn in self._of_parameters]
                if len(parts) == len(fqns):
                    mean = torch.cat(parts)
                else:
                    mean = torch.empty_like(buffer, dtype=torch.float32 if buffer.dtype in HALF else None)
                    dist.all_reduce(mean.copy_(buffer).div_(self.group.size()), group=self.group)
                self._hold(fqns, sizes, mean)
            return self._of_buckets[fqns]

    def note(self, fqns: tuple[str, ...], sizes: Sequence[int], mean: Tensor) -> None:
        """Keep a mean that a hook has returned, if it is wanted and new."""
        with self._lock:
            if self._wanted and not all(fqn in self._of_parameters for fqn in fqns):
                self._hold(fqns, sizes, mean.clone())

    def _hold(self, fqns: tuple[str, ...], sizes: Sequence[int], mean: Tensor) -> None:
        """Keep a bucket's mean, and its parameters' parts of it; forget earlier buckets with these parameters."""
        self._of_buckets = {key: kept for key, kept in self._of_buckets.items() if not set(key) & set(fqns)}
        self._of_buckets[fqns] = mean
        self._of_parameters |= dict(zip(fqns, mean.split(list(sizes)), strict=True))


@dataclass
class CommObserver:
    """Wraps `hook`, and registers the wrapper on a DDP model. `fqns` maps the ids of the model's parameters to names.

    `means` are taken before the hook is called, in the first step only; the `allreduce` hook itself returns them, bit
    for bit. `failure` is the first error.
    """

    hook: CommHook
    fqns: Mapping[int, str]
    look: BucketListener
    payload: Payload
    means: ExactMeans
    step: int = 0
    order: int = 0
    failure: Exception | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _timer: Timer | None = None

    def register(self, ddp: DistributedDataParallel) -> None:
        ddp.register_comm_hook(self.hook.make_state(), self.observe)

    def begin(self, step: int) -> None:
        """Begin a step: its buckets are counted from 0."""
        self.step, self.order = step, 0

    def observe(self, state: object, bucket: GradBucket) -> Future[Tensor]:
        """The communication hook that DDP calls: calls the wrapped hook, and shows the bucket before and after it."""
        buffer = bucket.buffer()
        fqns = tuple(self.fqns[id(p)] for p in bucket.parameters())
        size = buffer.numel() * buffer.element_size()
        exchange = Exchange(self.hook.name, self.step, bucket.index(), self.order, fqns, buffer.numel(), size)
        self.order += 1
        try:
            self.look.ready(exchange, buffer)
            sizes = [p.numel() for p in bucket.parameters()]
            itself = self.hook.exact and buffer.dtype not in HALF
            exact = None if itself else self.means.of(fqns, sizes, buffer)
            exchange.timer = self._timer = self._timer or timer_for(buffer.device, ProgramClock())
            exchange.ready = exchange.timer.now()
            failed = UserCode(lambda error: CommHookError(f"{self.hook.name} failed on {exchange}"))
            with self.payload.within(exchange), failed:
                future = self.hook.function(state, bucket)
            if not isinstance(future, FutureBase):
                returned = f"{self.hook.name} returned {_what(future)} for {exchange}: a communication hook returns a "
                right = "torch.futures.Future of a tensor, such as dist.all_reduce(..., async_op=True).get_future()"
                raise CommHookError(f"{returned}{right}.then(...)")
            return future.then(partial(self._finish, exchange, sizes, exact, buffer.shape))
        except Exception as error:
            self._fail(error)
            raise

    def _finish(
        self, exchange: Exchange, sizes: list[int], exact: Tensor | None, shape: torch.Size, future: Future[object]
    ) -> Tensor:
        try:
            with UserCode(lambda error: CommHookError(f"{self.hook.name} failed in a callback for {exchange}")):
                result = future.value()
            exchange.done = exchange.timer and exchange.timer.now()
            # PyTorch would accept such results silently, or abort the process for them.
            where = f"{self.hook.name}, {exchange}: its Future resolves to {_what(result)}"
            if isinstance(result, list):
                raise CommHookError(f"{where}: PyTorch takes one tensor, so end with .then(lambda fut: fut.value()[0])")
            if not isinstance(result, Tensor) or result.shape != shape:
                raise CommHookError(f"{where}: it must be a tensor of the bucket's shape, {tuple(shape)}")
            if not (result.is_floating_point() or result.is_complex()):
                raise CommHookError(f"{where}, which PyTorch would use as gradients: decode it in .then first")
            self.payload.close(exchange)
            if exact is None:
                self.means.note(exchange.fqns, sizes, result)
            self.look.done(exchange, result, result if exact is None else exact)
        except Exception as error:
            self._fail(error)
            raise
        return result

    def _fail(self, error: Exception) -> None:
        """Keep the first error: PyTorch passes on only its text, or another error that follows from it."""
        with self._lock:
            self.failure = self.failure or error


def _what(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    return "None" if value is None else f"a {type(value).__name__}"

"""The exact means of gradients over all ranks, by which communication hooks are measured."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

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
                mean = self._known(fqns)
                self._hold(fqns, sizes, self._taken(buffer) if mean is None else mean)
            return self._of_buckets[fqns]

    def note(self, fqns: tuple[str, ...], sizes: Sequence[int], mean: Tensor) -> None:
        """Keep a mean that a hook has returned, if it is wanted and new."""
        with self._lock:
            if self._wanted and not all(fqn in self._of_parameters for fqn in fqns):
                self._hold(fqns, sizes, mean.clone())

    def _known(self, fqns: tuple[str, ...]) -> Tensor | None:
        parts = [self._of_parameters[fqn] for fqn in fqns if fqn in self._of_parameters]
        return torch.cat(parts) if len(parts) == len(fqns) else None

    def _taken(self, buffer: Tensor) -> Tensor:
        mean = torch.empty_like(buffer, dtype=torch.float32 if buffer.dtype in HALF else None)
        dist.all_reduce(mean.copy_(buffer).div_(self.group.size()), group=self.group)
        return mean

    def _hold(self, fqns: tuple[str, ...], sizes: Sequence[int], mean: Tensor) -> None:
        """Keep a bucket's mean, and those of its parameters as parts of it; earlier buckets with them are forgotten."""
        self._of_buckets = {key: kept for key, kept in self._of_buckets.items() if not set(key) & set(fqns)}
        self._of_buckets[fqns] = mean
        self._of_parameters |= dict(zip(fqns, mean.split(list(sizes)), strict=True))

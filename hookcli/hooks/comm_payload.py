"""How many bytes this rank hands to collectives, and for which bucket of gradients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed import ProcessGroup

NEEDS = "needs ProcessGroup.register_pre_hook, which torch has since 2.15"
AMBIGUOUS = "a callback handed bytes to a collective while several buckets were under way"
NEW_GROUP = "the hook made a process group meanwhile, whose first bytes were not seen"
# What the other ranks hand over, where there is a root.
_FROM_ROOT = ("BROADCAST", "SCATTER")
_RECEIVES = ("RECV", "RECV_ANYSOURCE", "BARRIER")


class Counted(Protocol):
    """Whose bytes are counted; `uncounted` tells why `payload` is not all of them."""

    payload: int
    uncounted: str


class Payload:
    """Counts by ProcessGroup's pre-hooks, which see every collective, also those that C++ or a callback issues.

    What is issued on the thread that is `within` a bucket's hook is that bucket's. What a callback issues, on whichever
    thread, is that of the one bucket under way; where there are several, it can't be told, and none gets a figure.
    Bytes of the group `ours` are not counted.
    """

    def __init__(self, ours: ProcessGroup | None) -> None:
        self.ours = ours
        self._lock = threading.Lock()
        self._local = threading.local()
        self._open: list[Counted] = []
        self._seen: list[Counted] = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in this block; afterwards no group has a hook of ours."""
        self._seen = []
        with ExitStack() as stack:
            watched = self._groups()
            for group in watched:
                if hasattr(group, "register_pre_hook"):
                    key = id(self)  # a key is taken from whoever had it: this one is nobody's
                    group.register_pre_hook(key, partial(self._count, group))
                    stack.callback(group.unregister_pre_hook, key)
            yield
        if self._groups() != watched:
            for counted in self._seen:
                counted.uncounted = NEW_GROUP

    @contextmanager
    def within(self, counted: Counted) -> Iterator[None]:
        """The block is the call of a bucket's hook; until `close`, the bucket is under way."""
        with self._lock:
            self._open.append(counted)
            self._seen.append(counted)
            counted.uncounted = "" if hasattr(ProcessGroup, "register_pre_hook") else NEEDS
        self._local.counted = counted
        try:
            yield
        finally:
            self._local.counted = None

    def close(self, counted: Counted) -> None:
        """The bucket is done."""
        with self._lock:
            self._open.remove(counted)

    def _groups(self) -> set[ProcessGroup]:
        return set(dist.distributed_c10d._world.pg_map) - {self.ours}

    def _count(self, group: ProcessGroup, args: Any) -> None:
        name = args.name.name
        handed = sum(t.numel() * t.element_size() for t in args.input_tensors)
        if name in _RECEIVES or (name in _FROM_ROOT and args.root != group.rank()):
            handed = 0
        with self._lock:
            own = getattr(self._local, "counted", None)
            if own is not None:
                own.payload += handed
            elif len(self._open) == 1:
                self._open[0].payload += handed
            else:
                for counted in self._open:
                    counted.uncounted = AMBIGUOUS

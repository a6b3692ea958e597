"""Exchanges of buckets of gradients, and the bytes that this rank gives to collectives for each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.distributed import ProcessGroup

from hookcli.hooks.clock import Timer
from hookcli.hooks.torch_private.distributed import process_groups

NEEDS = "needs ProcessGroup.register_pre_hook, which torch has since 2.14"
AMBIGUOUS = "a callback handed bytes to a collective while several buckets were under way"
NEW_GROUP = "the hook made a process group meanwhile, whose first bytes were not seen"
# In these collectives, only the root gives bytes.
_FROM_ROOT = ("BROADCAST", "SCATTER")
_RECEIVES = ("RECV", "RECV_ANYSOURCE", "BARRIER")


@dataclass(slots=True, eq=False)
class Exchange:
    """One bucket of gradients, from the call of the hook to its result.

    `order`: the order in which the step's buckets became ready.
    `payload`: the bytes that this rank gave to collectives for the bucket; incomplete if `uncounted` has a reason.
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
    timer: Timer | None = None
    ready: Any = None
    done: Any = None

    def seconds(self) -> float:
        """Return the time from the call of the hook to the end of its Future."""
        assert self.timer
        self.timer.wait()
        return self.timer.between(self.ready, self.done) / 1e6

    def __str__(self) -> str:
        ends = self.fqns if len(self.fqns) < 3 else (self.fqns[0], "...", self.fqns[-1])
        return f"bucket {self.bucket} ({' '.join(ends)})"


class Payload:
    """Counts bytes with ProcessGroup's pre-hooks, which see every collective, also those from C++ or a callback.

    A collective that is issued on the thread that is `within` a bucket's hook belongs to that bucket. One that a
    callback issues, on any thread, belongs to the bucket under way; if several are, it is ambiguous, and none of them
    gets a figure. Bytes of the group `ours` are not counted.
    """

    def __init__(self, ours: ProcessGroup | None) -> None:
        self.ours = ours
        self._lock = threading.Lock()
        self._local = threading.local()
        self._open: list[Exchange] = []
        self._seen: list[Exchange] = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in this block; after it, no process group keeps a hook."""
        self._seen = []
        with ExitStack() as stack:
            watched = process_groups() - {self.ours}
            for group in watched:
                if hasattr(group, "register_pre_hook"):
                    key = id(self)  # registering a key that is in use would replace its hook
                    group.register_pre_hook(key, partial(self._count, group))
                    stack.callback(group.unregister_pre_hook, key)
            yield
        if process_groups() - {self.ours} != watched:
            for exchange in self._seen:
                exchange.uncounted = NEW_GROUP

    @contextmanager
    def within(self, exchange: Exchange) -> Iterator[None]:
        """Call a bucket's hook in this block; the bucket is under way until `close`."""
        with self._lock:
            self._open.append(exchange)
            self._seen.append(exchange)
            exchange.uncounted = "" if hasattr(ProcessGroup, "register_pre_hook") else NEEDS
        self._local.exchange = exchange
        try:
            yield
        finally:
            self._local.exchange = None

    def close(self, exchange: Exchange) -> None:
        """Stop counting for a bucket, whose result has arrived."""
        with self._lock:
            self._open.remove(exchange)

    def _count(self, group: ProcessGroup, args: Any) -> None:
        name = args.name.name
        handed = sum(t.numel() * t.element_size() for t in args.input_tensors)
        if name in _RECEIVES or (name in _FROM_ROOT and args.root != group.rank()):
            handed = 0
        with self._lock:
            here = getattr(self._local, "exchange", None)
            if here is not None:
                here.payload += handed
            elif len(self._open) == 1:
                self._open[0].payload += handed
            else:
                for exchange in self._open:
                    exchange.uncounted = AMBIGUOUS

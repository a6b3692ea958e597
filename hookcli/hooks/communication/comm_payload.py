"""The bytes that this rank gives to collectives, counted per bucket of gradients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

from torch.distributed import ProcessGroup

from hookcli.hooks.torch_private.distributed import process_groups

NEEDS = "needs ProcessGroup.register_pre_hook, which torch has since 2.14"
AMBIGUOUS = "a callback handed bytes to a collective while several buckets were under way"
NEW_GROUP = "the hook made a process group meanwhile, whose first bytes were not seen"
# In these collectives, only the root gives bytes.
_FROM_ROOT = ("BROADCAST", "SCATTER")
_RECEIVES = ("RECV", "RECV_ANYSOURCE", "BARRIER")


class Counted(Protocol):
    """Something to count bytes for; `uncounted` says why `payload` is incomplete."""

    payload: int
    uncounted: str


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
        self._open: list[Counted] = []
        self._seen: list[Counted] = []

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
            for counted in self._seen:
                counted.uncounted = NEW_GROUP

    @contextmanager
    def within(self, counted: Counted) -> Iterator[None]:
        """Call a bucket's hook in this block; the bucket is under way until `close`."""
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
        """Stop counting for a bucket, whose result has arrived."""
        with self._lock:
            self._open.remove(counted)

    def _count(self, group: ProcessGroup, args: Any) -> None:
        name = args.name.name
        handed = sum(t.numel() * t.element_size() for t in args.input_tensors)
        if name in _RECEIVES or (name in _FROM_ROOT and args.root != group.rank()):
            handed = 0
        with self._lock:
            here = getattr(self._local, "counted", None)
            if here is not None:
                here.payload += handed
            elif len(self._open) == 1:
                self._open[0].payload += handed
            else:
                for counted in self._open:
                    counted.uncounted = AMBIGUOUS

"""Child processes of an observed program, in which the program's hooks are off.

A forked child inherits shared memory, where it leaves a mark when an optimizer steps in it. Of a child that starts a
new interpreter ("spawn", "forkserver") only the start is noticed.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from mmap import mmap
from multiprocessing.process import BaseProcess

from torch.optim.optimizer import register_optimizer_step_pre_hook

_MARKS = 1 << 16
# Processes that serve their parent: they load its data, or keep its objects.
_SERVANTS = ("torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource_sharer")


class ChildProcesses:
    """Counts forked children that have trained, and children that were `started` as new interpreters.

    `serves_parent` is True in a forked child that loads its parent's data, or keeps its objects.
    """

    def __init__(self) -> None:
        self.started = 0
        self.serves_parent = False
        self._starting = threading.local()  # `process`: the one that this thread is starting
        self._marks = mmap(-1, _MARKS)  # a byte for each child, shared with all of them

    @property
    def trained(self) -> int:
        """Number of forked children in which an optimizer has stepped."""
        return self._marks[:].count(1)

    def forked(self) -> None:
        """Note that this process is a forked child: its optimizers leave marks."""
        process = getattr(self._starting, "process", None)
        self.serves_parent = process is not None and _serves(process)
        register_optimizer_step_pre_hook(self._mark)

    def _mark(self, *step: object) -> None:
        self._marks[os.getpid() % _MARKS] = 1

    def counted(self, start: Callable[[BaseProcess], None]) -> Callable[[BaseProcess], None]:
        """Wrap the function that starts a process: counts those that run a new interpreter."""

        def starts(process: BaseProcess) -> None:
            self._starting.process = process
            try:
                start(process)
            finally:
                self._starting.process = None
            method = getattr(process, "_start_method", None) or multiprocessing.get_start_method(allow_none=True)
            self.started += method != "fork" and not _serves(process)

        return starts


def _serves(process: BaseProcess) -> bool:
    return str(getattr(getattr(process, "_target", None), "__module__", "")).startswith(_SERVANTS)

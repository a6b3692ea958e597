"""Child processes of an observed program: they are counted, and nothing in them is observed.

A forked child inherits shared memory, where it leaves a mark when an optimizer steps in it. A child that starts a new
interpreter ("spawn", "forkserver") runs none of hookcli's code, so only its start is noticed.
"""

from __future__ import annotations

import multiprocessing
import os
from mmap import mmap
from multiprocessing.process import BaseProcess
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

_MARKS = 1 << 16
# Processes that serve their parent: they load its data, or keep its objects.
_SERVANTS = ("torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource_sharer")


class ChildProcesses:
    """Counts forked children that have trained, and children that were `started` as new interpreters."""

    def __init__(self) -> None:
        self.started = 0
        self._marks = mmap(-1, _MARKS)  # a byte for each child, shared with all of them

    @property
    def trained(self) -> int:
        """Number of forked children in which an optimizer has stepped."""
        return self._marks[:].count(1)

    def forked(self) -> None:
        """Note that this process is a forked child: its optimizers leave marks."""
        register_optimizer_step_pre_hook(self._mark)

    def _mark(self, *step: Any) -> None:
        self._marks[os.getpid() % _MARKS] = 1

    def count(self, _: None, process: BaseProcess) -> None:
        """Count a process that has started, if it runs a new interpreter."""
        method = getattr(process, "_start_method", None) or multiprocessing.get_start_method(allow_none=True)
        serves = str(getattr(getattr(process, "_target", None), "__module__", "")).startswith(_SERVANTS)
        self.started += method != "fork" and not serves

"""Child processes of a program that is looked at: nothing in them is, but it is known that there were some.

A forked child inherits memory in which it leaves a mark when an optimizer steps there. One that begins anew ("spawn",
"forkserver") runs nothing of ours, so that no more than its start is known.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from mmap import mmap
from multiprocessing.process import BaseProcess
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

_MARKS = 1 << 16
# Processes that serve their parent: they load its data, or keep its objects.
_SERVANTS = ("torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource_sharer")


class Children:
    """How many forked ones have trained until now, and how many were `started` anew."""

    def __init__(self) -> None:
        self.started = 0
        self._marks = mmap(-1, _MARKS)  # a byte for each child, shared with all of them

    @property
    def trained(self) -> int:
        """How many forked children an optimizer has stepped in."""
        return self._marks[:].count(1)

    def forked(self) -> None:
        """This is a forked child now."""
        register_optimizer_step_pre_hook(self._mark)

    def _mark(self, *step: Any) -> None:
        self._marks[os.getpid() % _MARKS] = 1

    def counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`BaseProcess.start` that counts those that begin anew."""

        def start(process: BaseProcess) -> None:
            original(process)
            method = getattr(process, "_start_method", None) or multiprocessing.get_start_method(allow_none=True)
            serves = str(getattr(getattr(process, "_target", None), "__module__", "")).startswith(_SERVANTS)
            self.started += method != "fork" and not serves

        return start

"""Ends a process whose run hangs, and says where it hung.

A thread watches the clock. A stage that takes too long is first interrupted by a signal, which raises in the main
thread, so that the error names the module and the measurements so far are reported. A main thread that waits in C++ for
another rank can't be interrupted: then the thread itself says what the ranks did last, and ends the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from torch.distributed.distributed_c10d import Store

from hookcli.errors import FAILED, OverdueError
from hookcli.system.streams import say, share_terminal
from hookcli.system.torchrun import World
from hookcli.table.ranks import ranks_named

_LOOK = 0.2  # seconds between looks
_ANSWER = 2.0  # seconds for the main thread to answer the signal, and for ranks to note their state
_END = 10.0  # seconds for a process to end by itself, and for other ranks to report
_SIGNAL = getattr(signal, "SIGUSR2", None)
_WAITS = (str(Path(torch.__file__).parent / "distributed"), str(Path(torch.__file__).parent / "autograd"))
_OURS = str(Path(__file__).parent)


class Watchdog:
    """Watches the stages of a run in a `with` block. A thread uses `store`, so it must be a connection of its own."""

    def __init__(self, world: World, store: Store, timeout: float) -> None:
        self._world = world
        self._store = store
        self._timeout = self._limit = timeout
        self.doing = ""
        self._since = time.monotonic()
        self._main = threading.main_thread()
        self._over = threading.Event()
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hookcli-watchdog", daemon=True)
        self._before: Any = None

    def stage(self, text: str, least: float = 0.0) -> None:
        """Begin a stage, which may take as long as the timeout, or `least` seconds if that is longer."""
        self.doing, self._since, self._limit = text, time.monotonic(), max(self._timeout, least)

    def __enter__(self) -> Self:
        if _SIGNAL and threading.current_thread() is self._main:
            self._before = signal.signal(_SIGNAL, self._interrupt)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        if _SIGNAL and self._before is not None:
            signal.signal(_SIGNAL, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._answered.set()
        raise OverdueError(f"still running {self._waited}")

    @property
    def _waited(self) -> str:
        return f"after {self._limit:g} s{' (--timeout)' if self._limit == self._timeout else ''}"

    def _watch(self) -> None:
        """If overdue, interrupt the main thread; if it does not answer, say what the ranks do and end the process."""
        while time.monotonic() - self._since <= self._limit:
            if self._over.wait(_LOOK):
                return
        self._store.set(f"stuck/{self._world.rank}", json.dumps(self._where()))
        if _SIGNAL and self._before is not None:
            signal.pthread_kill(self._main.ident or 0, _SIGNAL)
        time.sleep(_ANSWER)
        if not self._answered.is_set():
            # A busy rank reports first, since it knows where it hangs; nobody is waited for if all ranks wait.
            until = time.monotonic() + _END
            while time.monotonic() < until and not self._store.check(["failures"]):
                overdue = self._overdue()
                if len(overdue) == self._world.size and all(state["waits"] for state in overdue.values()):
                    break
                time.sleep(_LOOK)
        if self._answered.is_set() and self._over.wait(_END):  # the main thread handles it
            return
        if self._store.add("failures", 1) == 1:
            share_terminal()
            say(f"error: {self._account()}")
        else:
            time.sleep(_END)  # for the rank that reports: the first process to end ends them all
        os._exit(FAILED)

    def _overdue(self) -> dict[int, dict[str, object]]:
        """The state of all ranks that ran out of time."""
        ranks = range(self._world.size)
        return {r: json.loads(self._store.get(f"stuck/{r}")) for r in ranks if self._store.check([f"stuck/{r}"])}

    def _where(self) -> dict[str, object]:
        """The main thread's stage, its innermost frame outside PyTorch and hookcli, and whether it waits for ranks."""
        frame = sys._current_frames().get(self._main.ident or 0)
        waits = frame is not None and frame.f_code.co_filename.startswith((*_WAITS, _OURS))
        while frame is not None and frame.f_code.co_filename.startswith((str(Path(torch.__file__).parent), _OURS)):
            frame = frame.f_back
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}" if frame else "?"
        return {"waits": waits, "stage": self.doing, "place": place}

    def _account(self) -> str:
        """One line that says which rank keeps the others waiting."""
        overdue = self._overdue()
        silent = [rank for rank in range(self._world.size) if rank not in overdue]
        busy = [rank for rank in overdue if not overdue[rank]["waits"]]
        waited = self._waited
        if busy:
            at = overdue[busy[0]]
            return f"rank {busy[0]} hangs, {at['stage']}: still at {at['place']} {waited}"
        if silent:
            return f"no answer from {ranks_named(silent)} {waited}; rank {self._world.rank} waited, {self.doing}"
        why = "a collective that not all ranks call, or a Future that is never completed"
        return f"all ranks wait for one another, {self.doing}, {waited}: {why}"

"""Where the time of a step goes: in parts, and by module; and how much memory the process has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookcli.hooks.clock import Mark, ProgramClock
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.record.file.record_lines import TIMES
from hookcli.report import Column, Row
from hookcli.tensors import tree


class StepTimes:
    """The program's time in the parts of a step, without hookcli's own.

    The step begins at `since`, where the model's previous step ended, or with its first forward if there is none; what
    a DataLoader took before is then part of it.
    """

    def __init__(self, clock: ProgramClock, since: Mark | None) -> None:
        self.clock = clock
        self._first = clock.mark()
        self._since = since
        self._parts = {"forward": 0.0, "backward": 0.0}
        self._began: dict[str, float] = {}
        self._optimizers: list[float] = []
        self._stepping = self._in_waits = 0.0

    def begin(self, part: str) -> None:
        """Begin a forward or backward pass. A pass that was begun before and not ended went through other models."""
        self._began[part] = self.clock.now()

    def end(self, part: str) -> None:
        """End a pass through the model."""
        if (began := self._began.pop(part, None)) is not None:
            seconds = self.clock.now() - began
            self._parts[part] += seconds
            self._in_waits += seconds if self.clock.waiting else 0.0

    def begin_optimizer(self) -> None:
        """Begin an optimizer's step, perhaps within that of another."""
        self._optimizers.append(self.clock.now() - sum(self._parts.values()))

    def end_optimizer(self) -> None:
        """End an optimizer's step; passes inside it, as of a closure, count as passes.

        If it began before this step did, a forward in its closure was the step's first.
        """
        began = self._optimizers.pop() if self._optimizers else self._first.program
        if not self._optimizers:
            self._stepping += self.clock.now() - sum(self._parts.values()) - began

    def totals(self) -> dict[str, float]:
        """Seconds of each part until now; `hookcli_seconds` is what hookcli has taken meanwhile."""
        now, since = self.clock.mark(), self._since
        waited = now.waited - (since.waited if since else 0.0) - self._in_waits
        waited = max(waited, 0.0)  # another thread may have ended the step before
        whole = now.program - since.program if since else now.program - self._first.program + waited
        parts = {"data": waited, **self._parts, "optimizer": self._stepping}
        found = parts | {"rest": max(whole - sum(parts.values()), 0.0)}
        own = now.own - (since or self._first).own
        return {f"{part}_seconds": seconds for part, seconds in found.items()} | {"hookcli_seconds": own}


class TimeProbe(Probe):
    """Each module's time in forward and backward, over all calls of a step, without hookcli's own.

    A module's backward lasts from the arrival of its output's gradient to the next arrival at another module, so it
    contains the functions around the module; a container's is the sum over its parts.
    """

    name = "time"
    values = False
    columns = (
        Column("fqn", "Layer"),
        Column("type", "Type"),
        Column("calls", "Calls"),
        Column("forward_seconds", "Forward", "seconds"),
        Column("backward_seconds", "Backward", "seconds"),
    )

    def __init__(self, times: StepTimes, module: nn.Module, name: Callable[[str], str], training: bool) -> None:
        self._device = next((p.device for p in module.parameters()), torch.device("cpu"))
        self._clock = times.clock
        self._times = times
        self._name = name
        self._training = training
        self._order: dict[str, None] = {}  # as their first calls began
        self._began: dict[tuple[str, int], float] = {}
        self._forward: dict[str, tuple[str, int, float]] = {}
        self._backward: dict[str, float] = {}
        self._arrived: tuple[str, float] | None = None

    def attach(self, session: HookSession) -> None:
        """Register hooks before and after each module, and on the gradients of outputs."""
        session.forward_pre(self._enter)
        session.forward(self._leave)
        if self._training:
            session.output_grad(self._arrive)

    def _enter(self, event: HookEvent) -> None:
        self._order[event.fqn] = None
        self._began[event.fqn, event.call] = self._clock.now()

    def _leave(self, event: HookEvent) -> None:
        if (began := self._began.pop((event.fqn, event.call), None)) is not None and event.module is not None:
            kind, calls, seconds = self._forward.get(event.fqn) or (tree.type_text(event.module), 0, 0.0)
            self._forward[event.fqn] = kind, calls + 1, seconds + self._clock.now() - began

    def _arrive(self, event: HookEvent) -> None:
        if not event.inner:
            self.backward_over()
            self._arrived = event.fqn, self._clock.now()

    def backward_over(self) -> None:
        """End the backward of the module whose gradient came last: another's comes, or the pass is over."""
        if self._arrived is not None:
            fqn, began = self._arrived
            self._backward[fqn] = self._backward.get(fqn, 0.0) + self._clock.now() - began
            self._arrived = None

    def rows(self) -> list[Row]:
        """Return a row per module; if a wrapper and the module inside have one name, that of the inner one."""
        inner = {self._name(fqn): fqn for fqn in sorted(self._forward, key=len)}
        backward = self._backward_with_parts()
        return [self._row(fqn, backward) for fqn in self._order if inner.get(self._name(fqn)) == fqn]

    def _row(self, fqn: str, backward: Mapping[str, float]) -> Row:
        kind, calls, seconds = self._forward[fqn]
        times = dict(zip(TIMES, (seconds, backward.get(fqn)), strict=True))
        return Row({"fqn": self._name(fqn), "type": kind, "calls": calls, **times})

    def _backward_with_parts(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for fqn, seconds in self._backward.items():
            for owner in _with_owners(fqn):
                found[owner] = found.get(owner, 0.0) + seconds
        return found

    def totals(self) -> dict[str, Any]:
        """Return the seconds of the step's parts, and the memory."""
        return {**self._times.totals(), **memory(self._device)}


def _with_owners(fqn: str) -> Iterator[str]:
    yield fqn
    while fqn:
        fqn = fqn.rpartition(".")[0]
        yield fqn


def memory(device: torch.device) -> dict[str, int]:
    """Bytes of memory: the peak that was allocated on an accelerator so far; on the CPU the resident set.

    The peak is the process's: to begin anew would change what the program reads. Empty where neither is known.
    """
    if device.type not in ("cpu", "meta"):
        with suppress(RuntimeError, AttributeError):
            return {"peak_bytes": torch.accelerator.max_memory_allocated(device)}
        return {}
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"resident_bytes": pages * os.sysconf("SC_PAGE_SIZE")}
    return {}

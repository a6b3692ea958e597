"""Times of a step, by its parts and by module, and the memory of the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

import torch
from torch import nn

from hookcli.hooks.clock import Mark, ProgramClock, timer_for
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.probes.shared.call_times import CallTimer, over_passes
from hookcli.system.files import content
from hookcli.table import Row
from hookcli.table.columns.recorded import TIMED
from hookcli.table.names import around
from hookcli.table.times import INCLUSIVE, NAMES, by_module
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
        if (began := self._began.pop(part, None)) is not None:
            seconds = self.clock.now() - began
            self._parts[part] += seconds
            self._in_waits += seconds if self.clock.waiting else 0.0

    def in_backward(self) -> bool:
        return "backward" in self._began

    def begin_optimizer(self) -> None:
        """Begin an optimizer's step, perhaps within another's."""
        self._optimizers.append(self.clock.now() - sum(self._parts.values()))

    def end_optimizer(self) -> None:
        """End an optimizer's step; passes inside count as passes. One begun before this step has its first forward."""
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
        parts["rest"] = max(whole - sum(parts.values()), 0.0)
        own = now.own - (since or self._first).own
        return {f"{part}_seconds": seconds for part, seconds in parts.items()} | {"hookcli_seconds": own}


class TimeProbe(Probe):
    """Each module's time in forward and backward, over all calls of a step, without hookcli's own.

    A module's backward lasts from the arrival of its output's gradient to the next arrival at another module, so it
    contains the functions around the module; a container's is the sum over its parts. `by_nodes`: it is the time of the
    nodes that the module created, and there are times without the parts', too; see CallTimer. On an accelerator the
    times are then its own, and else the times of launching its work.
    """

    name = "time"
    values = False
    columns = TIMED

    def __init__(
        self, times: StepTimes, module: nn.Module, name: Callable[[str], str], training: bool, *, by_nodes: bool = False
    ) -> None:
        self._device = next((p.device for p in module.parameters()), torch.device("cpu"))
        self._clock = times.clock
        self._times = times
        self._name = name
        self._training = training
        self._by_nodes = self.operators = by_nodes
        self._sources: dict[str, str] = {}  # of operators
        self._timer: CallTimer | None = None
        self._forward: dict[str, tuple[str, int]] = {}  # as their first calls began
        self._began: dict[tuple[str, int], float] = {}
        self._spent: dict[str, dict[str, float]] = {}
        self._arrived: tuple[str, float] | None = None
        if not by_nodes:
            self.columns = tuple(column for column in self.columns if column.name not in INCLUSIVE.values())

    def attach(self, session: HookSession) -> None:
        session.forward_pre(self._enter)
        session.forward(self._leave)
        if self._by_nodes and session.nodes.exact:
            timer = timer_for(self._device, self._clock)
            self._timer = CallTimer(session, timer, backward=self._training, within=self._times.in_backward)
        elif self._training:
            session.output_grad(self._arrive)

    def _enter(self, event: HookEvent) -> None:
        self._forward.setdefault(event.fqn, ("", 0))
        self._began[event.fqn, event.call] = self._clock.now()

    def _leave(self, event: HookEvent) -> None:
        if event.operator is not None:
            if self._timer:
                self._sources[event.fqn] = event.operator.source
                self._count(event.fqn, event.operator.name)
            return
        began = self._began.pop((event.fqn, event.call), None)
        if began is not None and event.module is not None:
            self._count(event.fqn, tree.type_text(event.module))
            self._add(event.fqn, "forward_us", began)

    def _count(self, fqn: str, kind: str) -> None:
        self._forward[fqn] = kind, self._forward.get(fqn, ("", 0))[1] + 1

    def _add(self, fqn: str, name: str, began: float) -> None:
        spent = self._spent.setdefault(fqn, {})
        spent[name] = spent.get(name, 0.0) + (self._clock.now() - began) * 1e6

    def _arrive(self, event: HookEvent) -> None:
        if not event.inner:
            self.backward_over()
            self._arrived = event.fqn, self._clock.now()

    def backward_over(self) -> None:
        """End the backward of the module whose gradient came last: another's comes, or the pass is over."""
        if self._timer:
            self._timer.end_pass()
        elif self._arrived is not None:
            (fqn, began), self._arrived = self._arrived, None
            self._add(fqn, "backward_us", began)

    def rows(self) -> list[Row]:
        """Return a row per module; if a wrapper and the module inside have one name, the inner one's."""
        ran = [fqn for fqn, (_, calls) in self._forward.items() if calls]
        inner = {self._name(fqn): fqn for fqn in sorted(ran, key=len)}
        times = by_module(over_passes([self._timer.own()])) if self._timer else self._with_parts()
        rows = []
        for fqn in (fqn for fqn in ran if inner.get(self._name(fqn)) == fqn):
            kind, calls = self._forward[fqn]
            source = {"source": self._sources[fqn]} if fqn in self._sources else {}
            measured = {c.name: times.get(fqn, {}).get(c.name) for c in self.columns if c.name in NAMES}
            rows.append(Row({"fqn": self._name(fqn), "type": kind, "calls": calls, **source, **measured}))
        return rows

    def _with_parts(self) -> Mapping[str, Mapping[str, float]]:
        """The times of each module, with the backward of its parts."""
        times = {fqn: {**spent} for fqn, spent in self._spent.items()}
        for fqn, spent in self._spent.items():
            for owner in around(fqn) if "backward_us" in spent else ():
                whole = times.setdefault(owner, {})
                whole["backward_us"] = whole.get("backward_us", 0.0) + spent["backward_us"]
        return times

    def totals(self) -> dict[str, object]:
        return {**self._times.totals(), **memory(self._device)}


def memory(device: torch.device) -> dict[str, int]:
    """Bytes of memory, where known: an accelerator's peak in this process (not reset), or the CPU's resident set."""
    if device.type not in ("cpu", "meta"):
        with suppress(RuntimeError, AttributeError):
            return {"peak_bytes": torch.accelerator.max_memory_allocated(device)}
        return {}
    with suppress(OSError, ValueError, IndexError):
        pages = int(content("/proc/self/statm").split()[1])
        return {"resident_bytes": pages * os.sysconf("SC_PAGE_SIZE")}
    return {}

"""Timers: moments that hooks note while a model runs, and the time between them, which is read afterwards."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from hookcli.hooks.clock import ProgramClock


class Timer(Protocol):
    """Notes moments. `between` may be asked only after `wait`."""

    def now(self) -> Any:
        """Note this moment, without waiting for anything."""

    def wait(self) -> None:
        """Wait until all moments that were noted have come."""

    def between(self, began: Any, ended: Any) -> float:
        """Return the microseconds between two moments."""


class ProgramTimer:
    """Time by the program's clock, which stands still while hookcli works."""

    def __init__(self, clock: ProgramClock) -> None:
        self.now = clock.now

    def wait(self) -> None:
        """Do nothing: moments of the CPU have come when they are noted."""

    def between(self, began: float, ended: float) -> float:
        """See Timer."""
        return (ended - began) * 1e6


class DeviceTimer:
    """Time on an accelerator, by events in its current stream: a hook records one, and waits for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> torch.Event:
        """See Timer."""
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def wait(self) -> None:
        """See Timer."""
        torch.accelerator.synchronize(self._device)

    def between(self, began: torch.Event, ended: torch.Event) -> float:
        """See Timer."""
        return float(began.elapsed_time(ended)) * 1e3


def timer_for(device: torch.device, clock: ProgramClock) -> Timer:
    """The timer for a device: the program's clock on the CPU, and where an accelerator has no events that tell time."""
    if device.type == "cpu":
        return ProgramTimer(clock)
    timer = DeviceTimer(device)
    try:
        timer.now()
    except Exception:  # not every backend has them
        return ProgramTimer(clock)
    return timer

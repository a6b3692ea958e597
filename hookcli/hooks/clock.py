"""The program's clock: it stands still while hookcli works, and counts hookcli's own time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, partial
from math import inf
from time import perf_counter, thread_time
from typing import ClassVar, NamedTuple, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class Mark(NamedTuple):
    """A moment: the program's time, hookcli's time, and the time spent waiting for data so far, in seconds."""

    program: float
    own: float
    waited: float


class _Waits(threading.local):
    """A thread's time of waiting for data, in seconds: one that fetches ahead keeps no other thread waiting."""

    waited = 0.0
    began = 0.0
    depth = 0


class ProgramClock:
    """Splits time into the program's and hookcli's own, which passes between `enter` and `leave`.

    Threads take turns in there. On the CPU this is the time that the program's own work takes; on an accelerator, the
    time that it takes to launch that work, unless the program waits for results.
    """

    total: ClassVar[float] = 0.0
    """Seconds that hookcli has taken so far, by all clocks of the process."""

    def __init__(self) -> None:
        self._waits = _Waits()
        self._own = 0.0
        self._entries = 0
        self._depth = 0
        self._entered = 0.0
        self._counts_processor = False
        self._processor = self._processor_before = 0.0

    def enter(self) -> None:
        """Begin hookcli's own work, perhaps within other such work."""
        self._depth += 1
        if self._depth == 1:
            self._entries += 1
            self._entered = perf_counter()
            if self._counts_processor:
                self._processor_before = thread_time()

    def leave(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            seconds = perf_counter() - self._entered
            self._own += seconds
            if self._counts_processor:
                self._processor += self._processor_now()
            ProgramClock.total += seconds

    def counted(self, function: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function that does hookcli's own work."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            self.enter()
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return call

    @property
    def busy(self) -> bool:
        return self._depth > 0

    def outermost(self) -> None:
        """Note that nothing of hookcli is running: an interrupt may have kept `leave` from being called."""
        if self._depth:
            self._depth = 1
            self.leave()

    def now(self) -> float:
        """The program's time in seconds; only differences mean something."""
        moment = self._entered if self._depth else perf_counter()
        return moment - self._own

    @property
    def own(self) -> float:
        return self._own + (perf_counter() - self._entered if self._depth else 0.0)

    @property
    def cost(self) -> float:
        """Seconds that hookcli costs: its own work, and about what PyTorch and Python take to call hookcli for it."""
        return self.own + self._entries * seconds_outside()

    def count_processor(self, counts: bool) -> None:
        """Count the processor time of hookcli's own work from now on, or no longer: reading it takes a microsecond."""
        self._processor = self.processor
        self._counts_processor = counts
        self._processor_before = thread_time() if counts else 0.0

    @property
    def processor(self) -> float:
        """Seconds of processor time that hookcli's own work took, which others on the machine do not make longer."""
        return self._processor + (self._processor_now() if self._depth else 0.0)

    def _processor_now(self) -> float:
        """Processor time of the work under way; 0 if it began in another thread, whose clock is another one."""
        return max(thread_time() - self._processor_before, 0.0) if self._counts_processor else 0.0

    def wait_begins(self) -> None:
        """Begin to wait for a DataLoader, perhaps for one whose data come from another."""
        self._waits.depth += 1
        if self._waits.depth == 1:
            self._waits.began = self.now()

    def wait_over(self) -> None:
        self._waits.depth -= 1
        if self._waits.depth == 0:
            self._waits.waited += self.now() - self._waits.began

    @property
    def waiting(self) -> bool:
        """True while this thread waits for a DataLoader, which may run a model."""
        return self._waits.depth > 0

    def mark(self) -> Mark:
        """This moment, as this thread sees it."""
        now = self.now()
        return Mark(now, self.own, self._waits.waited + (now - self._waits.began if self.waiting else 0.0))


@cache
def seconds_outside() -> float:
    """About how long a call of hookcli takes beside the work that its clock counts; measured once, in a millisecond.

    It is the time of a call in a loop, which goes through the same functions, times what a training makes of it.
    """
    clock = ProgramClock()
    call = partial(clock.counted(lambda *args, **kwargs: None), None)
    quickest = inf
    for _ in range(_TRIES):
        before, began = clock.own, perf_counter()
        for _ in range(_CALLS):
            call(None)
        quickest = min(quickest, perf_counter() - began - (clock.own - before))
    return _AROUND * max(quickest, 0.0) / _CALLS


_TRIES, _CALLS = 8, 100
_AROUND = 20.0
"""How many times as long a call takes in a training: PyTorch finds and calls the hook, and the program's own work has
displaced hookcli's code from the processor's caches. Measured with a model of two layers, with and without hookcli.
"""


class ProgramTimer:
    """Time by the program's clock, which stands still while hookcli works."""

    def __init__(self, clock: ProgramClock) -> None:
        self.now = clock.now

    def wait(self) -> None:
        """Wait until all noted moments have passed; on the CPU they have at once."""

    def between(self, began: float, ended: float) -> float:
        """Return the microseconds between two moments; ask only after `wait`."""
        return (ended - began) * 1e6


class DeviceTimer:
    """Time on an accelerator, by events in its current stream: a hook records one, and waits for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def wait(self) -> None:
        torch.accelerator.synchronize(self._device)

    def between(self, began: torch.Event, ended: torch.Event) -> float:
        return float(began.elapsed_time(ended)) * 1e3


Timer = ProgramTimer | DeviceTimer


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

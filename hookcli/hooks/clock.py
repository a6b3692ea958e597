"""The program's clock: it stands still while hookcli works, and counts hookcli's own time."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, ClassVar, NamedTuple


class Mark(NamedTuple):
    """A moment: the program's time, hookcli's time, and the time spent waiting for data so far, in seconds."""

    program: float
    own: float
    waited: float


class ProgramClock:
    """Tells the time of the program apart from that of hookcli, which is the time between `enter` and `leave`.

    Threads take turns in there. On the CPU this is the time that the program's own work takes; on an accelerator, the
    time that it takes to launch that work, unless the program waits for results.
    """

    total: ClassVar[float] = 0.0
    """Seconds that hookcli has taken so far, by all clocks of the process."""

    def __init__(self) -> None:
        self.waited = 0.0
        """Seconds that the program has spent waiting for a DataLoader."""
        self._own = 0.0
        self._depth = 0
        self._entered = 0.0

    def enter(self) -> None:
        """Begin hookcli's own work, perhaps within other such work."""
        self._depth += 1
        if self._depth == 1:
            self._entered = perf_counter()

    def leave(self) -> None:
        """End hookcli's own work."""
        self._depth -= 1
        if self._depth == 0:
            seconds = perf_counter() - self._entered
            self._own += seconds
            ProgramClock.total += seconds

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that does hookcli's own work."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.enter()
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return call

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
        """Seconds that hookcli has taken so far."""
        return self._own + (perf_counter() - self._entered if self._depth else 0.0)

    def mark(self) -> Mark:
        """This moment."""
        return Mark(self.now(), self.own, self.waited)

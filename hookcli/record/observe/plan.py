"""Which steps are looked at, and what at."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

from hookcli import registry
from hookcli.errors import UsageError, shortened, unknown

DEFAULT_EVERY = 100
PROBES = ("activations", "grads", "updates")
FIRST_BAD = ("report", "stop")


@dataclass(frozen=True)
class Plan:
    """Every `every`th step from `start` until before `stop` is looked at, for `max_seconds` from now on.

    `probes` by name; "grads" are those of parameters and of what modules return, "updates" what optimizers change.
    `match` narrows modules and parameters by a glob. `first_bad`: look at each step, and tell the first value that is
    not finite ("report"), or end the program there ("stop"). With `check` the steps of a training are judged, too.
    Raises UsageError for what these can't be.
    """

    every: int = DEFAULT_EVERY
    start: int = 0
    stop: int | None = None
    max_seconds: float | None = None
    probes: Sequence[str] = PROBES
    match: str | None = None
    first_bad: str | None = None
    check: bool = False
    began: float = field(default_factory=time.monotonic)
    ended: Event = field(default_factory=Event)
    """Set where what is seen can't be written down any more: no step is looked at from then on."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"every {self.every} steps: give a number from 1")
        if self.first_bad not in (None, *FIRST_BAD):
            raise UsageError(unknown("first-bad", str(self.first_bad), FIRST_BAD))

    def keeps(self, step: int) -> bool:
        """Whether what is seen in this step is written down."""
        return self.covers(step) and (step - self.start) % self.every == 0

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.max_seconds is not None and time.monotonic() - self.began > self.max_seconds

    def why_none(self, steps: int) -> str:
        """The reason why none of so many steps was kept, as far as the plan is it."""
        if 0 < steps <= self.start:
            return f"no step was looked at: --steps begins with step {self.start}, the last one was {steps - 1}"
        return f"no step was looked at in the {self.max_seconds:g} s of --max-seconds" if self.over else ""

    def covers(self, step: int) -> bool:
        """Whether it is one of those that are asked for."""
        asked = step >= self.start and (self.stop is None or step < self.stop)
        return asked and not (self.over or self.ended.is_set())


def parse_steps(text: str | None) -> tuple[int, int | None]:
    """0:1000, 500: or :20, as Python's slices are. Raises UsageError for anything else."""
    parts = re.fullmatch(r"(\d{0,18}):(\d{0,18})", text if text is not None else ":")
    start, stop = (int(parts[1] or 0), int(parts[2]) if parts[2] else None) if parts else (0, 0)
    if stop is not None and start >= stop:
        given = shortened(text or "")
        raise UsageError(f"--steps {given!r}: give a range such as 0:1000, or 500: for all from there on")
    return start, stop


def check_probes(names: Sequence[str]) -> Sequence[str]:
    """The names. Raises UsageError for a probe that can't look at a program that runs as it is.

    Imports torch only for one of another distribution.
    """
    for name in names:
        if name not in (*PROBES, *_OTHERS):
            _check(name)
    return names


def _check(name: str) -> None:
    plugin = next((found for found in registry.plugins("probes") if found.name == name), None)
    if plugin is None:
        raise UsageError(unknown("--probe", name, [*PROBES, *_OTHERS]))
    if plugin.distribution != "hookcli":
        from hookcli.probes.base import StatsProbe

        probe = plugin.load()
        if isinstance(probe, type) and issubclass(probe, StatsProbe):
            return
    raise UsageError(
        f"--probe {name}: needs a run of its own (`hookcli {name}`); here {', '.join((*PROBES, *_OTHERS))}"
    )


_OTHERS = ("inputs",)

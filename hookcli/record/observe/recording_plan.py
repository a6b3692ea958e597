"""The plan of a recording: which steps to record, and what to measure in them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from threading import Event

from hookcli import registry
from hookcli.errors import UsageError, shortened, unknown
from hookcli.hooks.option_values import OPS

PROBES = ("activations", "grads", "updates", "optimizer", "time")
FIRST_BAD = ("report", "stop")
NO_GRAD = 1
"""Default limit of recorded forwards without gradients."""


@dataclass(frozen=True)
class RecordingPlan:
    """Records one in `every` steps, from `start` until before `stop`, for `max_seconds` from now on.

    Without `every` a Schedule chooses: the first steps, then fewer, as the run's time allows.

    `probes` by name: "grads" measures gradients of parameters and of what modules return, "updates" what optimizers
    change, "optimizer" the settings and norms of parameter groups, "time" where the time goes. `match` is a glob that
    narrows modules and parameters. `first_bad` observes every step; at the first non-finite value, "report" says so and
    "stop" ends the program; `keep_bad` is a folder for the module that returned it. `check` judges the recorded
    training steps. `hist`: statistics have histograms. `ops`: "functions" measures what operators return, too: the
    calls of PyTorch's functions while a model's forward runs. Of a model that is trained, at most `no_grad` forwards
    without gradients are recorded in each `every` training steps; 0 leaves out those of all models. `timed`: modules
    are timed with and without their parts, and in backward by autograd's nodes. Raises UsageError for values out of
    range.
    """

    every: int | None = None
    start: int = 0
    stop: int | None = None
    max_seconds: float | None = None
    probes: Sequence[str] = PROBES
    match: str | None = None
    first_bad: str | None = None
    check: bool = False
    hist: bool = False
    keep_bad: str | None = None
    no_grad: int = NO_GRAD
    timed: bool = False
    ops: str | None = None
    began: float = field(default_factory=time.monotonic)
    ended: Event = field(default_factory=Event)
    """Set when the record can take no more; no step is observed from then on."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise UsageError(f"every {self.every} steps: give a number from 1")
        if self.first_bad not in (None, *FIRST_BAD):
            raise UsageError(unknown("first-bad", str(self.first_bad), FIRST_BAD))
        if self.ops not in (None, OPS[0]):
            raise UsageError(
                f"ops {self.ops!r}: a program that runs is recorded with {OPS[0]!r}, which changes nothing"
            )
        if self.keep_bad is not None and self.first_bad is None:
            raise UsageError("--keep-bad: needs a search; add --first-bad report, or --first-bad stop")
        if self.keep_bad is not None and find_spec("safetensors") is None:
            raise UsageError("--keep-bad: needs safetensors: pip install 'hookcli[safetensors]'")

    def covers(self, step: int) -> bool:
        in_range = step >= self.start and (self.stop is None or step < self.stop)
        return in_range and not (self._time_is_up() or self.ended.is_set())

    def _time_is_up(self) -> bool:
        return self.max_seconds is not None and time.monotonic() - self.began > self.max_seconds

    def why_none(self, steps: int) -> str:
        """Why none of the program's `steps` was recorded; empty if the plan is not the reason."""
        if 0 < steps <= self.start:
            return f"no step was recorded: --steps begins at step {self.start}, but the last step was {steps - 1}"
        return f"no step was recorded in the {self.max_seconds:g} s of --max-seconds" if self._time_is_up() else ""


def parse_steps(text: str | None) -> tuple[int, int | None]:
    """Parse 0:1000, 500: or :20, like a slice. Raises UsageError for anything else."""
    parts = re.fullmatch(r"(\d{0,18}):(\d{0,18})", text if text is not None else ":")
    start, stop = (int(parts[1] or 0), int(parts[2]) if parts[2] else None) if parts else (0, 0)
    if stop is not None and start >= stop:
        given = shortened(text or "")
        raise UsageError(f"--steps {given!r}: give a range such as 0:1000, or 500: for step 500 and later")
    return start, stop


def parse_no_grad(text: str | None) -> int:
    """Parse off or a number from 1. Raises UsageError for anything else."""
    if text is None:
        return NO_GRAD
    if text != "off" and not re.fullmatch(r"[1-9]\d{0,17}", text):
        raise UsageError(f"--no-grad {shortened(text)!r}: give off, or a number from 1")
    return 0 if text == "off" else int(text)


def check_probes(names: Sequence[str]) -> Sequence[str]:
    """Return the names; only plugins' need torch. Raises UsageError for a probe that can't observe from outside."""
    choices = (*PROBES, "inputs")
    for name in names:
        if name in choices:
            continue
        plugin = next((plugin for plugin in registry.plugins("probes") if plugin.name == name), None)
        if plugin is None:
            raise UsageError(unknown("--probe", name, choices))
        if plugin.distribution != "hookcli":
            from hookcli.probes.base import StatsProbe

            probe = plugin.load()
            if isinstance(probe, type) and issubclass(probe, StatsProbe):
                continue
        alone = f"needs a separate run (`hookcli {name}`)"
        raise UsageError(f"--probe {name}: {alone}; choose from: {', '.join(choices)}")
    return names

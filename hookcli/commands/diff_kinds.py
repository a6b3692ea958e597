"""Kinds of sides of `hookcli diff` besides models: what a side is, and how it is compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from hookcli.commands.option_fields import option, tolerance_option
from hookcli.commands.options import GRADIENTS, Options
from hookcli.commands.run_options import StepOptions
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError, class_name
from hookcli.registry.capability import Capability, load_text
from hookcli.registry.pieces import blamed, left_out, pieces

EXAMPLE = "hookcli diff resnet18 'resnet18 --dtype bfloat16' --rtol 2e-2"
"""A command that runs, for messages."""
_CORE = (
    "hookcli.commands.diff_files:Records",
    "hookcli.commands.diff_runs:SavedReports",
    "hookcli.commands.diff_files:Tensors",
    "hookcli.commands.diff_dump_sides:Dumps",
)


@dataclass(frozen=True)
class DiffOptions:
    """Options of `hookcli diff` alone."""

    panel = "Comparison"

    rtol: float | None = tolerance_option("Relative tolerance, by norm [sqrt(eps), float32: 3.5e-4].")
    atol: float | None = tolerance_option("Absolute tolerance, of the root mean square [0].", seldom=True)
    same_weights: bool = option(False, "Copy A's weights into B.")
    allow_settings: list[str] = option(
        list, "Settings that modules of two models may differ in: eps,p; '*' allows all.", metavar="NAMES"
    )
    backward: bool = option(False, "Compare gradients, too.", panel=GRADIENTS)
    isolate: bool = option(False, "Separate each module's own error from inherited error.")
    float64: bool = option(
        True, "Skip the run in float64 that judges both sides where only precision differs.", seldom=True
    )

    def for_models(self, time: bool) -> str:
        """The first of the given options that are for models alone; "" if there is none. `time`: --time is given."""
        switches = {
            "--same-weights": self.same_weights,
            "--backward": self.backward,
            "--time": time,
            "--isolate": self.isolate,
            "--no-float64": not self.float64,
            "--allow-settings": self.allow_settings,
        }
        return next((name for name, on in switches.items() if on), "")


@dataclass(frozen=True)
class Asked:
    """A comparison that was asked for: both sides as typed; `typed` are the names of the given options."""

    a: str
    b: str
    own: DiffOptions
    step: StepOptions
    options: Options
    tolerance: Tolerance
    typed: Set[str]

    def check_gradients(self) -> None:
        """Raises UsageError for options that don't go with the forward pass, or with the backward pass."""
        step, own = self.step, self.own
        of_loss = "--loss" if step.loss else "--backward-vector" if step.backward_vector else ""
        if of_loss and not own.backward:
            raise UsageError(f"{of_loss}: without --backward nothing is differentiated")
        if own.isolate and own.backward:
            raise UsageError("--isolate: is for the forward pass alone; leave --backward out")


class Side(ABC):
    """A kind of side, which one of the arguments names at least. Knows it without torch."""

    what: ClassVar[str]
    """Several of the kind, in words: "records"."""
    place: ClassVar[int]
    """Of two sides that differ in kind the one with the lower place compares both."""
    no_operators: ClassVar[str] = ""
    """Why --ops doesn't go with it; "" if it does."""
    by: Capability | None = None
    """The capability that adds it, None for the core; found, not given."""

    @abstractmethod
    def fits(self, text: str) -> bool:
        """True for an argument that names one."""

    def is_kind_of(self, texts: Sequence[str]) -> bool:
        """True if it compares these arguments."""
        return any(map(self.fits, texts))

    def why_no_model(self, text: str) -> str:
        """Why it can't stand where a model is to be, and what would be right; "" to let the model's source say that."""
        return ""

    @abstractmethod
    def compare(self, asked: Asked) -> int:
        """Write the comparison. Returns the exit code: 1 if anything is beyond tolerance. Raises UsageError."""


@cache
def sides() -> Sequence[Side]:
    """All kinds, the lowest place first."""
    made: list[Side] = [load_text(target)() for target in _CORE]
    for one, kind in pieces("side", type):
        with left_out(one, f"side={one.side!r}"):
            side = kind()
            if not isinstance(side.place, int):
                raise TypeError(f"its place is {class_name(side.place)}, not a whole number")
            side.by = one
            made.append(side)
    return sorted(made, key=lambda side: side.place)


def kinds_of(*texts: str) -> list[Side]:
    """The kinds of these arguments; none for models. One of another distribution that fails is not among them."""
    kinds: list[Side] = []
    for side in sides():
        with left_out(side.by, f"side={side.by.side!r}") if side.by else nullcontext():
            if side.is_kind_of(texts):
                kinds.append(side)
    return kinds


def compare_as(side: Side, asked: Asked) -> int:
    """Compare as this side does. Returns the exit code. Raises PluginError, which names another distribution's side."""
    with blamed(side.by, f"side={side.by.side!r}" if side.by else ""):
        return side.compare(asked)


def require_model(label: str, text: str) -> None:
    """Raise UsageError for an argument of a kind that can't stand in place of a model."""
    for side in kinds_of(text):
        if why := side.why_no_model(text):
            raise UsageError(f"{label} {text!r}: {why}")

"""Guards the parts of the observation: one that fails is left out from then on, by name, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from hookcli.errors import in_brief
from hookcli.hooks.events import Callback, HookEvent
from hookcli.hooks.origin import raised_by_signal_handler
from hookcli.hooks.session import HookSession
from hookcli.record.file.record_lines import NonFinite, PartLine, RecordedStep
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.registry.capability import capabilities, load_text
from hookcli.table import Report
from hookcli.table.meta import Meta

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step of a model that is observed, before its first forward.

    `module` is the model, and `name` makes its names for parts those of the record. The `probes` are those of the run;
    `gradients`: those of parameters and of what modules return are measured; `operators`: so is what operators return.
    """

    model: str
    module: nn.Module
    name: Callable[[str], str]
    training: bool
    probes: Sequence[str]
    gradients: bool
    operators: bool


class StepPart:
    """The base of a recorder's part in one step of a model."""

    inside_compiled = False
    """True if it needs of a module only what it receives and returns, so that it can look inside compiled parts."""

    digest = ""
    """The `weights` of the step in the record, by which its ranks are compared; only one part may have it."""

    def attach(self, session: HookSession) -> None:
        """Ask for hooks, as the step's first forward begins."""

    def backward_over(self) -> None:
        """A backward pass through the model is over."""

    def report(self, meta: Meta, group: Sequence[int]) -> Report | None:
        """The report of this step, which is over. `group`: the ranks that a wrapper keeps alike, if any does."""
        return None

    def lines(self, step: RecordedStep, *, scaled: bool) -> Sequence[PartLine]:
        """The lines to write before this step, which is over; `scaled`: a GradScaler handles overflows."""
        return ()

    def found(self, fqn: str, value: NonFinite) -> str:
        """A search has found the run's first non-finite value, in this step and at this place of the session.

        Returns how to reproduce it, or why that can't be told; "" to say nothing.
        """
        return ""


class RecorderPart:
    """The base of the part of a capability in a program that is recorded; made anew for each run."""

    def begin_step(self, step: BegunStep) -> StepPart | None:
        """A step of a model begins that is observed; None to have no part in it."""
        return None


def make_recorders(plan: RecordingPlan) -> dict[str, RecorderPart]:
    """The parts of capabilities in a recording with this plan, each named as messages name it."""
    made = {}
    for one in capabilities():
        given = {option.name: plan.of_parts.get(option.name, option.default) for option in one.options}
        asked = any(given[option.name] != option.default for option in one.options)
        if one.recorder and (asked or not one.recorded_if_asked):
            made[one.name.replace("_", "-")] = load_text(one.recorder)(**given)
    return made


class Parts:
    """Knows which parts of the observation of which models have failed. `tell` gets the model, a line, and the error.

    A part is named as the user knows it: by its probe ("updates"), or its capability.
    """

    def __init__(self, tell: Callable[[str, str, Exception], None], recorders: Mapping[str, RecorderPart]) -> None:
        self._tell = tell
        self.recorders = recorders
        """The parts of capabilities, by name."""
        self._off: set[tuple[str, str]] = set()

    def works(self, model: str, part: str) -> bool:
        return (model, part) not in self._off

    def run(self, model: str, part: str, do: Callable[[], T], otherwise: T) -> T:
        """What `do` returns; `otherwise` if the part fails now, or has failed before."""
        if not self.works(model, part):
            return otherwise
        try:
            return do()
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            self._off.add((model, part))
            why = f"hookcli failed ({in_brief(error)}), which is a bug in hookcli"
            self._tell(model, f"{part}: left out from here on, since {why}; the rest is recorded", error)
            return otherwise

    def guarded(self, model: str, part: str, callback: Callback) -> Callback:
        """Wrap a callback of a session."""

        def call(event: HookEvent) -> None:
            self.run(model, part, lambda: callback(event), None)

        return call

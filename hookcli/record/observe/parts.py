"""Guards the parts of the observation: one that fails is left out from then on, by name, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from torch import Tensor
from torch.optim.optimizer import Optimizer

from hookcli.errors import in_brief
from hookcli.hooks.events import Callback, HookEvent
from hookcli.hooks.origin import raised_by_signal_handler
from hookcli.hooks.session import HookSession
from hookcli.record.file.record_lines import PartLine, RecordedStep

T = TypeVar("T")


class StepPart:
    """A recorder's part in one step of a model. Each event that it does not define is of no interest to it."""

    def attach(self, session: HookSession) -> None:
        """Ask for hooks, as the step's first forward begins."""

    def backward_begins(self, roots: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
        """A backward pass begins from these tensors, perhaps through the model, whose optimizers are these."""

    def backward_over(self) -> None:
        """A backward pass through the model is over."""

    def optimizer_takes(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step by the gradients; after its step, if a closure makes them."""

    def lines(self, step: RecordedStep, *, scaled: bool) -> Sequence[PartLine]:
        """The lines to write before this step, which is over; `scaled`: a GradScaler handles overflows."""
        return ()


class RecorderPart(Protocol):
    """The part of a capability in a program that is recorded; made anew for each run."""

    def begin_step(self) -> StepPart:
        """A step of a model begins whose gradients are measured."""


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

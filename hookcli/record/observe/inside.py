"""What a part of a capability needs to have steps see inside compiled parts of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Protocol

from torch import nn

from hookcli.hooks.session import HookSession


class Measuring(Protocol):
    """Hooks on a model for one step, as StepMeasurements; the hooks of its `session` see inside compiled parts."""

    session: HookSession

    def start(self, called: nn.Module) -> None: ...
    def remove(self) -> None: ...
    def release(self) -> None: ...


class Inside(Protocol):
    """Decides which steps see inside compiled parts. Models go by their names in the record."""

    @property
    def tries_elsewhere(self) -> bool:
        """True while another thread tries a model out, which may wait for this one."""

    def wants(self, name: str, module: nn.Module) -> bool:
        """True if the next step of this model is to be seen inside compiled parts, of which it has some."""

    def try_out(
        self, name: str, module: nn.Module, called: nn.Module, given: tuple[Any, Any], make: Callable[[], Measuring]
    ) -> bool:
        """Return whether a forward of the model with this input can be looked at.

        `called`: the module that the program calls, `given`: its arguments. `make` makes what measures the step.
        """

    def within(self, name: str, frame: FrameType) -> AbstractContextManager[None]:
        """Have what this frame calls be seen inside in this block: the model that was tried out last."""

    def said(self, name: str) -> str:
        """How the model's compiled parts were seen inside; "" if they were not."""

    def notes(self, name: str) -> Sequence[str]:
        """The notes on a model."""

    def none_found(self) -> Sequence[str]:
        """The notes on the run if no model had compiled parts."""

    def close(self) -> None:
        """Put back what was set for it."""

"""What is told of a program that runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn
from torch.optim.optimizer import Optimizer


class Watcher(Protocol):
    """What is told. None of it may raise."""

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module is called that no other module calls."""

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Its call is over."""

    def failed(self, thread: int) -> None:
        """The last call in this thread has ended by an exception, which the program has caught and let go of.

        Not where the next call comes first, nor of an interrupt.
        """

    def backward_begins(self, tensors: Any, gradients: Any, inputs: Any) -> None:
        """`backward()` of these tensors; with `gradients` of theirs, and for some `inputs` alone, where not None."""

    def backward_over(self) -> None:
        """That pass is over, or failed."""

    def scaled(self, scaler: Any, losses: Any, made: Any) -> None:
        """Of these losses a GradScaler `made` others."""

    def scaler_stepped(self, optimizer: Optimizer) -> None:
        """A GradScaler has let an optimizer step, or has left the step out."""

    def made(self, optimizer: Optimizer) -> None:
        """An optimizer gets parameters: its first ones, or others."""

    def step_begins(self, optimizer: Optimizer, closure: bool) -> Callable[[], object] | None:
        """An optimizer's step; with a closure, the forward and backward passes are inside it.

        What is returned is called after `step_over`, or instead of it when the exception that ended the step is gone.
        """

    def step_over(self, optimizer: Optimizer) -> None:
        """That step is over."""

    def compiled(self, module: nn.Module) -> None:
        """`module.compile()`: no hook sees its calls any more."""

    def forked(self) -> None:
        """This is a child process now, in which nothing is told any more."""

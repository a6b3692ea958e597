"""The interface through which global hooks report what an observed program does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli.tensors.tree import Args, Kwargs


class Listener(Protocol):
    """Gets a call for each thing that the program does. No method may raise."""

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs | None = None) -> bool:
        """An outermost module is called: no other module's forward calls it. It may call the module itself.

        Returns whether the end of the call matters: else none of the methods below is called for it. Hooks give no
        `kwargs`: `keywords` finds the call's keywords.
        """

    def leave(self, module: nn.Module, args: Args, kwargs: Kwargs, output: object) -> None:
        """The outermost module's call has returned."""

    def call_failing(self) -> None:
        """An exception passes through this thread's outermost call, which is about to end; not for an interrupt."""

    def call_failed(self, thread: int) -> None:
        """The thread's last outermost call raised an exception, which the program has caught and released.

        Not called if the next outermost call begins first, nor for an interrupt.
        """

    def backward_begins(self, tensors: object, gradients: object, inputs: object) -> None:
        """`backward()` of these tensors is called; `gradients` and `inputs` are its other arguments, or None."""

    def backward_over(self) -> None:
        """The backward pass is over, or has raised."""

    def loss_scaled(self, scaler: object, losses: object, made: object) -> None:
        """A GradScaler has scaled these losses; `made` holds the results."""

    def scaler_stepped(self, optimizer: Optimizer) -> None:
        """A GradScaler has called an optimizer's step, or has skipped it."""

    def parameters_added(self, optimizer: Optimizer) -> None:
        """An optimizer has got parameters: on its construction, or later."""

    def step_begins(self, optimizer: Optimizer, closure: bool) -> Callable[[], object] | None:
        """An optimizer's step begins; with a closure, it contains forward and backward passes.

        A function that this returns is called if the step raises, once the exception is gone; then without `step_over`.
        """

    def step_over(self, optimizer: Optimizer) -> None:
        """The optimizer's step is over."""

    def step_passed(self, optimizer: Optimizer) -> None:
        """The optimizer's step is over, while steps pass without being followed."""

    def step_of_other(self, optimizer: Optimizer) -> None:
        """An optimizer's step begins, while steps pass: perhaps another optimizer than the one whose steps may."""

    def evaluation_begins(self) -> bool:
        """The first forward since a step has no gradients, while steps pass. Returns whether it is followed."""

    def module_compiled(self, module: nn.Module) -> bool:
        """`module.compile()` was called: hooks see no calls of the module any more.

        Returns whether its calls are to be reported nevertheless.
        """

    def state_loaded(self, module: nn.Module, state: object, keys: object) -> None:
        """`module.load_state_dict(state)` has returned these keys: missing ones, and unexpected ones."""

    def data_wait_begins(self) -> None:
        """The program waits for the next batch of a DataLoader."""

    def data_wait_over(self, batches: object) -> None:
        """The batch has come, or the DataLoader, whose iterator this is, has raised."""

    def forked(self) -> None:
        """This process is a forked child, in which the hooks are off from now on."""

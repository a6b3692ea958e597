"""Backward passes: their losses, and the observed steps that they go through."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hookcli.hooks.torch_private.distributed import loss_scale
from hookcli.record.observe.steps.open_steps import OpenSteps
from hookcli.record.observe.steps.step import ObservedStep
from hookcli.tensors import tree
from hookcli.tensors.weak import WeakIds


@dataclass(slots=True)
class _Pass:
    """A backward pass under way: its roots, their gradients, and the steps that waited when it began."""

    tensors: list[Tensor]
    gradients: list[Tensor | None]
    steps: list[tuple[ObservedStep, object, bool]]
    """Each with the gradients that had arrived, and whether the pass leaves gradients in its model."""


class BackwardPasses:
    """Follows one pass per thread. A pass goes through a model if gradients arrive in its open step."""

    def __init__(self, steps: OpenSteps) -> None:
        self._steps = steps
        self._running: dict[int, _Pass] = {}  # by thread
        self._scalers: dict[int, Any] = {}  # by thread: the scaler that was used since the last pass
        self._scaled: WeakIds[Tensor, tuple[Any, Tensor]] = WeakIds()  # scaled losses -> their scaler, and the loss

    @property
    def under_way(self) -> bool:
        """True if a pass that began has not ended, in any thread."""
        return bool(self._running or self._scalers)

    def scaled(self, scaler: Any, losses: Any, made: Any) -> None:
        """Note that a GradScaler has scaled `losses`; `made` holds the results."""
        self._scalers[threading.get_ident()] = scaler
        for (_, loss), (_, scaled) in zip(tree.leaves(losses), tree.leaves(made), strict=False):
            self._scaled[scaled] = scaler, loss.detach().clone()

    def begin(self, tensors: Any, gradients: Any, inputs: Any) -> None:
        """Note that `backward()` of these tensors begins, with their `gradients`, limited to `inputs` if not None."""
        for_inputs = None if inputs is None else {id(x) for _, x in tree.leaves(inputs)}
        steps = [(s, s.arrived, s.gets_gradients(for_inputs)) for s in self._steps if s.waits_here()]
        roots = [x for _, x in tree.leaves(tensors)]
        weights = [gradients] if gradients is None or isinstance(gradients, Tensor) else list(gradients)
        self._running[threading.get_ident()] = _Pass(roots, weights, steps)
        for step, _, _ in steps:
            step.begin_backward(roots)

    def end(self) -> None:
        """End a pass that is over, or has failed, and hand its loss to the steps that it went through."""
        thread = threading.get_ident()
        running, last = self._running.pop(thread, None), self._scalers.pop(thread, None)
        if running is None:
            return
        unscaled = [self._scaled.get(x) for x in running.tensors]
        scaler = next((scaler_and_loss[0] for scaler_and_loss in unscaled if scaler_and_loss), last)
        unsure = scaler is not None and not any(unscaled)
        losses = [known[1] if known else x.detach() for x, known in zip(running.tensors, unscaled, strict=True)]
        if unsure:  # made of scaled losses, such as their sum
            losses = [loss / loss_scale(scaler).to(loss.device) for loss in losses]
        terms = _terms(losses, running.gradients)
        for step, arrived, counts in running.steps:
            step.detach()
            if step.arrived != arrived or not step.sees_gradients:
                if unsure:
                    step.notes[_UNSURE] = None
                step.end_backward(terms, scaler, counts=counts)
                self._steps.search(step)
                if not step.model.has_optimizer:
                    step.model.differentiated = True
                    step.measured.take_gradients()
                    self._steps.close(step)


def _terms(losses: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor] | None:
    """The numbers whose sum is differentiated; None if one of the tensors is not a single number."""
    if not losses or any(loss.numel() != 1 or loss.is_complex() for loss in losses):
        return None
    weights = [*gradients, *[None] * (len(losses) - len(gradients))]
    return [
        loss.clone() if weight is None else loss * weight.detach()
        for loss, weight in zip(losses, weights, strict=False)
    ]


_UNSURE = (
    "backward() was called on a tensor that GradScaler.scale did not return: taken for a sum of scaled losses, so its"
    " loss is divided by the scale"
)

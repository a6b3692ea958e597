"""Backward passes: of what, and through which models."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hookcli.record.observe.window import OpenWindow
from hookcli.record.observe.windows import Windows
from hookcli.tensors import tree
from hookcli.tensors.weak import WeakIds


@dataclass(slots=True)
class _Pass:
    """A pass that is under way: of what, and the windows that were idle when it began."""

    tensors: list[Tensor]
    gradients: list[Tensor | None]
    windows: list[tuple[OpenWindow, int, bool]]
    """With how many gradients had arrived in each, and whether the pass leaves gradients in its model."""


class Passes:
    """One a thread at a time. A pass is of a model whose window is open where gradients arrive in that meanwhile."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._running: dict[int, _Pass] = {}  # by thread
        self._scalers: dict[int, Any] = {}  # by thread: the one that has scaled since the last pass
        self._scaled: WeakIds[Tensor, tuple[Any, Tensor]] = WeakIds()  # losses that a GradScaler made -> it, what of

    def scaled(self, scaler: Any, losses: Any, made: Any) -> None:
        """Of these losses a GradScaler made others."""
        self._scalers[threading.get_ident()] = scaler
        for (_, loss), (_, scaled) in zip(tree.leaves(losses), tree.leaves(made), strict=False):
            self._scaled[scaled] = scaler, loss.detach().clone()

    def begin(self, tensors: Any, gradients: Any, inputs: Any) -> None:
        """Hooks go on: checkpointed modules run again inside."""
        for_inputs = None if inputs is None else {id(x) for _, x in tree.leaves(inputs)}
        windows = [(w, w.arrived, w.gets_gradients(for_inputs)) for w in self._windows.idle()]
        found = [x for _, x in tree.leaves(tensors)]
        given = [gradients] if gradients is None or isinstance(gradients, Tensor) else list(gradients)
        self._running[threading.get_ident()] = _Pass(found, given, windows)
        for window, _, _ in windows:
            window.losses.begins()
            window.session.modules.attach()

    def end(self) -> None:
        """It is over, or failed."""
        thread = threading.get_ident()
        running, last = self._running.pop(thread, None), self._scalers.pop(thread, None)
        if running is None:
            return
        known = [self._scaled.get(x) for x in running.tensors]
        scaler = next((found[0] for found in known if found), last)
        unsure = scaler is not None and not any(known)
        losses = [found[1] if found else x.detach() for x, found in zip(running.tensors, known, strict=True)]
        terms = _terms(_unscaled(losses, scaler) if unsure else losses, running.gradients)
        for window, arrived, counts in running.windows:
            window.session.modules.detach()
            if window.arrived > arrived or not window.sees_gradients:
                if unsure:
                    window.notes[_UNSURE] = None
                window.differentiated(terms, scaler, counts=counts)
                self._over(window)

    def _over(self, window: OpenWindow) -> None:
        self._windows.look(window)
        if not window.watched.optimizers():
            window.take_gradients()
            self._windows.close(window)


def _terms(losses: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor] | None:
    """What the number that is differentiated is the sum of; None where a tensor is not a single number."""
    if not losses or any(loss.numel() != 1 or loss.is_complex() for loss in losses):
        return None
    weights = [*gradients, *[None] * (len(losses) - len(gradients))]
    return [
        loss.clone() if weight is None else loss * weight.detach()
        for loss, weight in zip(losses, weights, strict=False)
    ]


def _unscaled(losses: Sequence[Tensor], scaler: Any) -> list[Tensor]:
    """What was made of scaled losses, such as their sum, without the scale."""
    return [loss / scaler._get_scale_async().to(loss.device) for loss in losses]


_UNSURE = (
    "backward() was not of what GradScaler.scale returned: taken for a sum of that, and its loss divided by the scale"
)

"""Backward passes: of what, and through which models."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor

from hookcli import tree
from hookcli.observe.window import OpenWindow
from hookcli.observe.windows import Windows


class Passes:
    """One a thread at a time. A pass is of a model whose window is open where gradients arrive in that meanwhile."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._running: dict[int, tuple[Any, list[tuple[OpenWindow, int]]]] = {}  # by thread
        self._scalers: dict[int, Any] = {}  # by thread: the one that has scaled since the last pass
        self._scaled: tree.ByTensor[tuple[Any, Tensor]] = (
            tree.ByTensor()
        )  # losses that a GradScaler made -> it, and what of

    def scaled(self, scaler: Any, losses: Any, made: Any) -> None:
        """Of these losses a GradScaler made others."""
        self._scalers[threading.get_ident()] = scaler
        for (_, loss), (_, scaled) in zip(tree.leaves(losses), tree.leaves(made), strict=False):
            self._scaled[scaled] = scaler, loss.detach().clone()

    def begin(self, tensors: Any, *, closure: bool) -> None:
        """Hooks go on: checkpointed modules run again inside. `closure`: an optimizer asks for it in its step."""
        windows = self._windows.idle()
        self._running[threading.get_ident()] = tensors, [(window, window.arrived) for window in windows]
        for window in windows:
            if not closure:
                window.losses.forget_cleared()
            window.session.modules.attach()

    def end(self) -> None:
        """It is over, or failed."""
        thread = threading.get_ident()
        tensors, windows = self._running.pop(thread, (None, []))
        made = (found for _, x in tree.leaves(tensors) if (found := self._scaled.get(x)) is not None)
        scaler, loss = next(made, (None, tensors))
        last = self._scalers.pop(thread, None)
        unsure = scaler is None and last is not None
        if unsure:
            scaler, loss = last, _unscaled(tensors, last)
        for window, arrived in windows:
            window.session.modules.detach()
            if window.arrived > arrived or not window.sees_gradients:
                if unsure:
                    window.notes[_UNSURE] = None
                self._through(window, loss, scaler)

    def _through(self, window: OpenWindow, loss: Any, scaler: Any) -> None:
        window.differentiated(loss, scaler)
        self._windows.look(window)
        if not window.watched.optimizers():
            window.take_gradients()
            self._windows.close(window)


def _unscaled(tensors: Any, scaler: Any) -> list[Tensor]:
    """What was made of scaled losses, such as their sum, without the scale."""
    return [x.detach() / scaler._get_scale_async().to(x.device) for _, x in tree.leaves(tensors)]


_UNSURE = (
    "backward() was not of what GradScaler.scale returned: taken for a sum of that, and its loss divided by the scale"
)

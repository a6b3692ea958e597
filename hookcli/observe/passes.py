"""Backward passes: of what, and through which models."""

from __future__ import annotations

import threading
from typing import Any

from torch.utils.weak import WeakTensorKeyDictionary

from hookcli import tree
from hookcli.observe.window import OpenWindow
from hookcli.observe.windows import Windows


class Passes:
    """One a thread at a time. A pass is of a model whose window is open where gradients arrive in that meanwhile."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._running: dict[int, tuple[Any, list[tuple[OpenWindow, int]]]] = {}  # by thread
        self._scaled: Any = WeakTensorKeyDictionary()  # losses that a GradScaler made -> it, and what of

    def scaled(self, scaler: Any, losses: Any, made: Any) -> None:
        """Of these losses a GradScaler made others."""
        for (_, loss), (_, scaled) in zip(tree.leaves(losses), tree.leaves(made), strict=False):
            self._scaled[scaled] = scaler, loss.detach().clone()

    def begin(self, tensors: Any) -> None:
        """Hooks go on: checkpointed modules run again inside."""
        windows = self._windows.idle()
        self._running[threading.get_ident()] = tensors, [(window, window.arrived) for window in windows]
        for window in windows:
            window.losses.forget_cleared()
            window.session.modules.attach()

    def end(self) -> None:
        """It is over, or failed."""
        tensors, windows = self._running.pop(threading.get_ident(), (None, []))
        for window, arrived in windows:
            window.session.modules.detach()
            if window.arrived > arrived or not window.sees_gradients:
                self._through(window, tensors)

    def _through(self, window: OpenWindow, tensors: Any) -> None:
        made = (self._scaled[x] for _, x in tree.leaves(tensors) if x in self._scaled)
        scaler, loss = next(made, (None, tensors))
        window.differentiated(loss, scaler)
        self._windows.look(window)
        if not window.watched.optimizers():
            window.take_gradients()
            self._windows.close(window)

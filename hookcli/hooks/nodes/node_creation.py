"""PyTorch's hook on the creation of autograd nodes (torch 2.14)."""

from __future__ import annotations

from collections.abc import Callable

from torch.autograd import graph
from torch.autograd.graph import Node

from hookcli.hooks.session_core import SessionCore
from hookcli.hooks.torch_private.autograd import tracing_context


class NodeCreation:
    """One hook, shared by everything that listens for new autograd nodes. `available`: this PyTorch has such hooks."""

    def __init__(self, core: SessionCore) -> None:
        self.available = hasattr(graph, "node_creation_hook")
        self._core = core
        self._listeners: list[Callable[[Node], None]] = []

    def listen(self, listener: Callable[[Node], None]) -> None:
        """Call `listener` with every node that is created from now on."""
        if not self._listeners:
            self._core.enter_context(graph.node_creation_hook(self._core.guarded(self._created)))
        self._listeners.append(listener)

    def _created(self, node: Node) -> None:
        if tracing_context() is None:  # else torch.compile is tracing: this graph never runs
            for listener in self._listeners:
                listener(node)

"""Hooks on a model's outputs, which notice a backward pass through the model."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle, unserializable_hook

from hookcli.tensors import tree
from hookcli.tensors.torch_private import is_view


def all_gone(handles: Iterable[RemovableHandle]) -> bool:
    """Return whether none of these hooks on tensors can fire any more: autograd has released the tensors."""
    return all(handle.hooks_dict_ref() is None for handle in handles)


class GradArrivals:
    """Hooks on a model's outputs. `times` counts the gradients that arrived at them."""

    def __init__(self) -> None:
        self.times = 0
        self._handles: list[RemovableHandle] = []

    def __bool__(self) -> bool:
        return bool(self._handles)

    def watch(self, output: Any) -> None:
        """Hook the tensors of an output that have a graph, except views, whose hooks in-place operations drop."""
        for _, y in tree.leaves(output):
            if y.requires_grad and not y.is_leaf and not is_view(y):
                arrive = unserializable_hook(partial(self._arrive))  # marked, which a bound method can't be
                self._handles.append(y.register_hook(arrive))

    def gone(self) -> bool:
        """Return whether no gradient can arrive any more."""
        return all_gone(self._handles)

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def _arrive(self, _: Tensor | None) -> None:
        self.times += 1

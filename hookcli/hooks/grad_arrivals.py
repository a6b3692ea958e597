"""Whether backward passes come through what a model returned, whatever else is hooked in it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle, unserializable_hook

from hookcli.tensors import tree


def let_go(handles: Iterable[RemovableHandle]) -> bool:
    """Whether none of these hooks on tensors can fire any more: autograd has let go of the tensors."""
    return all(handle.hooks_dict_ref() is None for handle in handles)


class Reach:
    """Hooks on returned tensors. `times`: how often a gradient has arrived at one of them."""

    def __init__(self) -> None:
        self.times = 0
        self._handles: list[RemovableHandle] = []

    def __bool__(self) -> bool:
        return bool(self._handles)

    def watch(self, output: Any) -> None:
        """Hook what of this has a graph; not views, whose hooks in-place operations drop."""
        for _, y in tree.leaves(output):
            if y.requires_grad and not y.is_leaf and not y._is_view():
                arrive = unserializable_hook(partial(self._arrive))  # which marks it; a bound method takes no marks
                self._handles.append(y.register_hook(arrive))

    def gone(self) -> bool:
        """Whether no gradient can arrive any more."""
        return let_go(self._handles)

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def _arrive(self, _: Tensor | None) -> None:
        self.times += 1

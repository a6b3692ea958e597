"""Softmaxes and sigmoids whose output a loss takes for logits, found in the autograd graph of the loss."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.events import HookEvent
from hookcli.hooks.nodes.graph_walk import walk
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.autograd import next_sequence_number, sequence_number
from hookcli.probes.shared.inventory_part import InventoryPart

_LOSSES = {
    "LogSoftmax": ("Softmax", "softmax", "cross_entropy, or another log_softmax"),
    "BinaryCrossEntropyWithLogits": ("Sigmoid", "sigmoid", "binary_cross_entropy_with_logits"),
}
_SAME_VALUES = {
    *("View", "UnsafeView", "ReshapeAlias", "Alias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "Expand"),
    *("Select", "Slice", "Index", "IndexSelect", "Split", "Unbind", "Cat", "Stack", "Clone", "ToCopy"),
    *("MaskedSelect", "Gather", "BackwardHookFunction"),
}
_ENDING = re.compile(r"Backward\d*$")


class DoubledActivations(InventoryPart):
    """Rows of kind `doubled`: `fqn` is the module that called the softmax or sigmoid, by the numbers of its nodes."""

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        session.before_backward(self._search)
        self._began: dict[tuple[str, int], int] = {}
        self._calls: list[tuple[int, int, str]] = []
        self._rows: dict[tuple[str, str], dict[str, object]] = {}

    def enter(self, event: HookEvent) -> None:
        self._began[event.fqn, event.call] = next_sequence_number()

    def leave(self, event: HookEvent) -> None:
        if event.operator is not None:
            return
        began = self._began.pop((event.fqn, event.call), None)
        if began is not None and began < (end := next_sequence_number()):
            self._calls.append((began, end, event.fqn))

    def _search(self, roots: Sequence[Tensor]) -> None:
        for node in walk(x.grad_fn for x in roots if x.grad_fn is not None):
            if pair := _LOSSES.get(_name(node)):
                wanted, name, loss = pair
                for source in _sources(node):
                    if _name(source) == wanted:
                        number = sequence_number(source)
                        inside = [(began, fqn) for began, end, fqn in self._calls if began <= number < end]
                        fqn = max(inside)[1] if inside else ""
                        self._rows[fqn, name] = {"kind": "doubled", "fqn": fqn, "type": name, "loss": loss}

    def batch_ended(self) -> None:
        """Forget where the nodes of a graph that is gone were made."""
        self._calls.clear()

    def rows(self) -> list[dict[str, object]]:
        return [*self._rows.values()]


def _sources(loss: Node) -> Iterator[Node]:
    """The nodes that computed what a loss received, past those that only arrange values."""
    first = loss.next_functions[0][0]  # the others belong to the target and weights
    if first is not None:
        yield first
        for node in walk([first], lambda node: _name(node) in _SAME_VALUES):
            yield from (after for after, _ in node.next_functions if after is not None)


def _name(node: Node) -> str:
    return _ENDING.sub("", node.name().rpartition("::")[2])

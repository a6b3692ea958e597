"""Softmaxes and sigmoids that go into a loss which has one in it, or that expects something else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch.autograd.graph import Node

from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.nodes import operator

_LOSSES = {
    "LogSoftmax": ("Softmax", "softmax", "cross_entropy (or a log_softmax), which expects logits"),
    "BinaryCrossEntropyWithLogits": (
        "Sigmoid",
        "sigmoid",
        "binary_cross_entropy_with_logits, which expects logits",
    ),
    "NllLoss": ("Softmax", "softmax", "nll_loss, which expects log-probabilities (log_softmax)"),
}
ARRANGES = {
    *("View", "UnsafeView", "ReshapeAlias", "Alias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "Expand"),
    *("Select", "Slice", "Index", "IndexSelect", "Split", "Unbind", "Cat", "Stack", "Clone", "ToCopy"),
    *("MaskedSelect", "Gather", "BackwardHookFunction"),
}
"""The operators that only arrange values."""
_OF_LOSSES = {*_LOSSES, *ARRANGES, *("NllLoss2D", "Add", "Sub", "Mul", "Div", "Neg", "Mean", "Sum")}


class Doubled(NamedTuple):
    """The node of a softmax or sigmoid, its name, and words on the loss that it goes into."""

    node: Node
    name: str
    goes_into: str


def doubled(nodes: Iterable[Node]) -> Iterator[Doubled]:
    """Yield those that go into one of these nodes."""
    for node in nodes:
        if pair := _LOSSES.get(operator(node)):
            wanted, name, loss = pair
            yield from (Doubled(source, name, loss) for source in sources(node) if operator(source) == wanted)


def nodes_of_losses(ends: Iterable[Node]) -> Iterator[Node]:
    """Yield the nodes from these on that belong to a loss, and not to the model."""
    return walk(ends, lambda node: operator(node) in _OF_LOSSES)


def sources(loss: Node) -> Iterator[Node]:
    """The nodes that computed what a loss received, past those that only arrange values."""
    first = loss.next_functions[0][0]  # the others belong to the target and weights
    if first is not None:
        yield first
        for node in walk([first], lambda node: operator(node) in ARRANGES):
            yield from (after for after, _ in node.next_functions if after is not None)

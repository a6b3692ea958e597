"""What a model has returned, held by the nodes of its outputs: of a difference alone the targets are not known."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.node_hooks import metadata_of
from hookcli.hooks.torch_private.autograd import version
from hookcli.hooks.torch_private.losses import compared, difference_in
from hookcli.hooks.torch_private.nodes import operator, returned_shape
from hookcli.tensors import tree

_MOST = 2**20  # elements of an output that is held
_RESHAPES = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Select", "Slice")  # which keep the order


class Held:
    """The outputs of a node by their numbers, as long as the node lives and they are not `let go`."""

    __slots__ = ("__weakref__", "outputs")

    def __init__(self) -> None:
        self.outputs: dict[int, tuple[Tensor, int]] = {}
        """Each with the version that it had: the program may change it in place."""


class Returned:
    """The outputs of a model in a step."""

    def __init__(self) -> None:
        self._held: list[ref[Held]] = []

    def hold(self, outputs: Sequence[Tensor]) -> None:
        """Let the nodes of outputs hold their values, if these are not large."""
        for x in outputs:
            if x.grad_fn is not None and tree.is_plain(x) and x.is_floating_point() and x.numel() <= _MOST:
                held = metadata_of(x.grad_fn).setdefault(__name__, Held())
                held.outputs[x.output_nr] = x.detach(), version(x)
                self._held.append(ref(held))

    def let_go(self) -> None:
        """Keep no output any longer."""
        for one in self._held:
            if held := one():
                held.outputs.clear()
        self._held.clear()


def errors_of(node: Node) -> tuple[Tensor, Tensor] | None:
    """The outputs and targets of a loss, or of errors that are squared, or made absolute, by hand; else None.

    Of the latter the outputs must be those of a model. Waits for nothing.
    """
    if pair := compared(node):
        return pair
    difference = difference_in(node)
    outputs = output_before(*difference.source) if difference else None
    if difference is None or outputs is None or outputs.numel() != difference.values.numel():
        return None
    with torch.no_grad():
        outputs = outputs.reshape(difference.values.shape)
        return outputs, outputs - difference.sign * difference.values


def output_before(node: Node, number: int) -> Tensor | None:
    """The output of this number that the node has made, or those which it reshapes, if it is held."""
    while operator(node) in _RESHAPES and __name__ not in metadata_of(node):
        before, number = node.next_functions[0]
        if before is None or prod(returned_shape(before, number)) != prod(returned_shape(node)):
            return None
        node = before
    held = metadata_of(node).get(__name__)
    output, seen = held.outputs.get(number, (None, 0)) if held else (None, 0)
    return output if output is not None and version(output) == seen else None

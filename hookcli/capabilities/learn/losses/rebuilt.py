"""Reconstructions of the input, as of autoencoders, that another term of the loss outweighs."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from math import prod

import torch
from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.losses import averaged, other_factor
from hookcli.hooks.torch_private.nodes import operator, returned_shape
from hookcli.tensors import tree

_KEEPS = ("Add", "Sub", "Neg", "ToCopy")
_PICKS = ("Gather", "Index", "NllLoss")
_LOOKED_AT, _NEAR = 32, 8  # nodes
_LEAST, _MOST = 0.01, 10.0  # factors that do not make up for a sum beside an average

Place = tuple[int, int]
"""Where the values of a tensor are in memory, and how many there are: a view in another shape has the same."""


def place_of(x: Tensor) -> Place:
    """The place of the values of a tensor."""
    return x.data_ptr(), x.numel()


def outweighed(loss: Tensor, received: Collection[Place]) -> tuple[str, Tensor] | None:
    """Words on a loss that averages the error of a reconstruction and sums another term over a batch; else None.

    The squared error comes with them, as a share of the variance of the input. `received`: the places of what the model
    received, one of which is the target. Waits for nothing.
    """
    terms = terms_of(loss)
    pairs = [pair for pair in map(averaged, terms) if pair and all(map(tree.is_plain, pair))]
    outputs, inputs = next((pair for pair in pairs if place_of(pair[1]) in received), (None, None))
    if outputs is None or inputs is None or not inputs.dim():
        return None
    shapes = (returned_shape(*summed(term)) for term in terms if not of_labels(term))
    sizes = [prod(shape) for shape in shapes if shape[:1] == (len(inputs),)]
    if not sizes:
        return None
    words = f"the loss averages its error over {inputs.numel():,} values, and sums another term over {sizes[0]:,}"
    with torch.no_grad():
        error = (outputs.detach().float() - inputs.detach().float()).square().mean()
        return words, error / inputs.detach().float().var(0, unbiased=False).mean()


def terms_of(loss: Tensor) -> list[Node]:
    """The nodes of the terms of a loss, of those that count."""
    sums = islice(walk([loss.grad_fn] if loss.grad_fn is not None else [], keeps), _LOOKED_AT)
    return [after for node in sums for after, _ in node.next_functions if after is not None and not keeps(after)]


def of_labels(term: Node) -> bool:
    """True if a term picks the scores of labels: then the reconstruction may be no more than its regularizer."""
    return any(operator(node) in _PICKS for node in islice(walk([term]), _NEAR))


def summed(term: Node) -> tuple[Node | None, int]:
    """The node of the tensor all of whose values this term sums, and the number of its output; None for no sum."""
    return term.next_functions[0] if term.name() == "SumBackward0" else (None, 0)


def keeps(node: Node) -> bool:
    """True if a term counts after this node, but for a factor that is not extreme. Waits for nothing."""
    factor = other_factor(node) if operator(node) == "Mul" else None
    if factor is None or factor.numel() != 1 or factor.device.type != "cpu":  # where autograd keeps a number
        return operator(node) in _KEEPS
    return _LEAST <= abs(factor.item()) <= _MOST

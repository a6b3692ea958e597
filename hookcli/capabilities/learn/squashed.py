"""Softmaxes at the end of a model that are taken over one number alone, or over the rows of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod

from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.losses import normalized_dimension
from hookcli.hooks.torch_private.nodes import operator, returned_shape
from hookcli.probes.shared.doubled import ARRANGES, sources
from hookcli.table.formatting import shape as shape_text

_LOSSES = {
    *("NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy"),
    *("Mean", "Sum", "Neg", "Add", "Sub", "Pow", "Abs", "Log", "Clamp", "ClampMin"),
    *ARRANGES,
}
_SCALES = ("Mul", "Div")
_LOOKED_AT = 64  # nodes


def squashed(losses: Sequence[Tensor]) -> str:
    """Words on a softmax that goes into a loss, and that no model means; "" if there is none.

    Only what a constant multiplies on the way is looked through, since a model weighs values with attention's softmax.
    """
    for node in softmaxes(losses):
        dim, shape, name = normalized_dimension(node), returned_shape(node), names(node)
        if dim is None or prod(shape) < 2:
            continue
        if shape[dim] == 1:
            one = "0" if operator(node) == "LogSoftmax" else "1"
            what = f"{name} is taken over a dimension of one number ({shape_text(shape)}), where it always is {one}"
            return f"{what}: use binary_cross_entropy_with_logits, or one output for each class"
        if dim == 0 and len(shape) == 2 and shape[0] != shape[1] > 1 and "Addmm" in map(operator, sources(node)):
            return f"{name} is taken over the rows of the batch (dim=0), not over the classes"
    return ""


def softmaxes(losses: Sequence[Tensor]) -> Iterator[Node]:
    """Yield the softmaxes, and logarithms of them, that a loss gets."""
    ends = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    for node in islice(walk(ends, hands_on), _LOOKED_AT):
        for after, _ in node.next_functions:
            if after is not None and normalized_dimension(after) is not None:
                yield after


def names(node: Node) -> str:
    """The function's name as programs have it."""
    return "log_softmax" if operator(node) == "LogSoftmax" else "softmax"


def hands_on(node: Node) -> bool:
    """True if this node belongs to a loss, and no other part of the model goes into it as a factor."""
    kind = operator(node)
    return kind in _LOSSES or (kind in _SCALES and sum(after is not None for after, _ in node.next_functions) == 1)

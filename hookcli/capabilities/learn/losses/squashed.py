"""Softmaxes at the end of a model that are taken over one number alone, or over the rows of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.losses import constant_factor, normalized_dimension
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
    A loss may have one over a single number beside others, as for an attribute of one value. One over the rows is meant
    where the loss also has one over the classes, or where it weighs constants.
    """
    found = [one for one in softmaxes(losses) if prod(returned_shape(one.node)) > 1]
    if found and all(returned_shape(one.node)[one.dim] == 1 for one in found):
        node = found[0].node
        always = "0" if operator(node) == "LogSoftmax" else "1"
        where = f"a dimension of one number ({shape_text(returned_shape(node))}), where it always is {always}"
        instead = "use binary_cross_entropy_with_logits, or one output for each class"
        return f"{names(node)} is taken over {where}: {instead}"
    dims = {one.dim for one in found if len(returned_shape(one.node)) == 2}
    over_rows = [one.node for one in found if not one.weighs and is_of_layer(one.node)] if dims == {0} else []
    words = (f"{names(node)} is taken over the rows of the batch (dim=0), not over the classes" for node in over_rows)
    return next(words, "")


class Normalized(NamedTuple):
    """A softmax, or its logarithm, over dimension `dim`; `weighs`: a tensor of constants is multiplied by it."""

    node: Node
    dim: int
    weighs: bool


def softmaxes(losses: Sequence[Tensor]) -> Iterator[Normalized]:
    """Yield the softmaxes, and logarithms of them, that a loss gets."""
    ends = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    for node in islice(walk(ends, hands_on), _LOOKED_AT):
        for after, _ in node.next_functions:
            dim = normalized_dimension(after) if after is not None else None
            if after is not None and dim is not None:
                factor = constant_factor(node) if operator(after) == "Softmax" else None
                yield Normalized(after, dim, factor is not None and factor.numel() > 1)


def is_of_layer(softmax: Node) -> bool:
    """True if a softmax got a table of other rows than columns from a linear layer."""
    shape = returned_shape(softmax)
    return len(shape) == 2 and shape[0] != shape[1] > 1 and "Addmm" in map(operator, sources(softmax))


def names(node: Node) -> str:
    """The function's name as programs have it."""
    return "log_softmax" if operator(node) == "LogSoftmax" else "softmax"


def hands_on(node: Node) -> bool:
    """True if this node belongs to a loss, and no other part of the model goes into it as a factor."""
    kind = operator(node)
    return kind in _LOSSES or (kind in _SCALES and sum(after is not None for after, _ in node.next_functions) == 1)

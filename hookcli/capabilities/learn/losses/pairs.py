"""N outputs and N other values that a loss broadcasts to N x N: each is compared with every other."""

from __future__ import annotations

from itertools import islice

from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.losses import constant_factor
from hookcli.hooks.torch_private.nodes import operator, returned_shape

Shape = tuple[int, ...]
_COMBINES = ("Sub", "Add", "Mul", "Div", "SmoothL1Loss", "HuberLoss")
_HANDS_ON = ("Mean", "Sum", "Neg", "Pow", "Abs", "ToCopy", "Clamp", "Minimum")
# No Exp: kernels compare all pairs on purpose; no Maximum: so do losses of many quantiles.
_LOOKED_AT = 32  # nodes


def paired(loss: Tensor) -> tuple[Shape, Shape] | None:
    """The shapes of outputs before and after constants made N x N of N on the way to this loss; else None.

    An output of (N, 1) less targets of (N) is (N, N). A loss that also compares outputs with each other, or that weighs
    the pairs, means all of them.
    """
    ends = [loss.grad_fn] if loss.grad_fn is not None else []
    nodes = [*islice(walk(ends, hands_on), _LOOKED_AT)]
    if any(map(means_pairs, nodes)):
        return None
    for node in nodes:
        following = [one for one, _ in node.next_functions if one is not None]
        if operator(node) in _COMBINES and len(following) == 1:
            source = expanded(following[0])
            before = returned_shape(source)
            after = returned_shape(node if source is following[0] else following[0])
            other = constant_factor(node)
            squared = len(after) == 2 and after[0] == after[1] > 1 and before in (after[:1], (after[0], 1))
            if squared and (other is None or other.numel() == after[0]):
                return before, after
    return None


def hands_on(node: Node) -> bool:
    """True if a loss may follow from what this node received, as it is; a root that of one number."""
    kind = operator(node)
    return kind in (*_COMBINES, *_HANDS_ON) or (kind == "Sqrt" and not returned_shape(node))


def means_pairs(node: Node) -> bool:
    """True if this node makes N x N of outputs alone, or multiplies N x N by as many constants."""
    shape = returned_shape(node)
    if operator(node) not in _COMBINES or len(shape) != 2 or shape[0] != shape[1]:
        return False
    following = [one for one, _ in node.next_functions if one is not None]
    other = constant_factor(node)
    smaller = all(returned_shape(one) != shape for one in following)
    return (len(following) > 1 and smaller) or (other is not None and other.numel() == shape[0] ** 2 > 1)


def expanded(node: Node) -> Node:
    """The node whose values this one only repeats, as l1_loss does before it compares; else this one."""
    before = node.next_functions[0][0] if operator(node) == "Expand" else None
    return node if before is None else before

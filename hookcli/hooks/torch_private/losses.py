"""Private names of the nodes of losses: which loss a number is, its targets, and the scores that it was given."""

from __future__ import annotations

import math

from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.torch_private.nodes import kept, operator, returned_shape
from hookcli.tensors.torch_private import private

_GUESSING = "whether a loss is better than guessing is not judged"
_MEAN = 1  # at::Reduction::Mean
_CHOICES = ("NllLossBackward0", "NllLoss2DBackward0")
_BINARY = ("BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0")
_SQUARES = "MseLossBackward0"
_DISTANCES = (_SQUARES, "SmoothL1LossBackward0", "HuberLossBackward0")
_NAMES = {
    **dict.fromkeys(_CHOICES, "cross_entropy"),
    **dict.fromkeys(_BINARY, "binary_cross_entropy"),
    _SQUARES: "mse_loss",
}
_PICKS = ("ViewBackward0", "SqueezeBackward1", "GatherBackward0", "IndexBackward0")


def _past(node: Node | None, *names: str) -> Node | None:
    """The first node from this one on that has none of these names."""
    while node is not None and node.name() in names:
        node = node.next_functions[0][0]
    return node


def loss_node(loss: Tensor) -> Node | None:
    """The node that made a loss, before it was cast."""
    return _past(loss.grad_fn, "ToCopyBackward0")


def _is_mean(node: Node | None, *names: str) -> bool:
    """True if the node has one of these names, and averages."""
    return node is not None and node.name() in names and private(node, "_saved_reduction", _MEAN, _GUESSING) == _MEAN


def choices_of(loss: Tensor) -> tuple[int, int]:
    """The numbers of choices and of classes of a mean cross-entropy; 0, 0 for any other loss.

    A loss that is divided, or added to another, is none.
    """
    node = loss_node(loss)
    if node is None or not _is_mean(node, *_CHOICES):
        return 0, 0
    scores = _past(node.next_functions[0][0], "ViewBackward0")  # of scores with positions
    if scores is None or scores.name() != "LogSoftmaxBackward0":
        return 0, 0
    shape = returned_shape(scores)  # (classes), or (choices, classes, ...)
    if not shape:
        return 0, 0
    classes = shape[1] if shape[1:] else shape[0]
    return math.prod(shape) // max(classes, 1), classes


def labels_of(loss: Tensor) -> Tensor | None:
    """The labels of the choices whose cross-entropy this loss is; None if it is none."""
    node = loss_node(loss)
    if node is None or node.name() not in _CHOICES:
        return None
    return kept(node, "target", _GUESSING)


def binary_targets_of(loss: Tensor) -> Tensor | None:
    """The targets whose mean binary cross-entropy, without weights, this loss is; None if it is none."""
    node = loss_node(loss)
    if node is None or not _is_mean(node, *_BINARY):
        return None
    weights = ["weight"] + ["pos_weight"] * (node.name() == _BINARY[1])
    weighted = any(kept(node, name, _GUESSING) is not None for name in weights)
    return None if weighted else kept(node, "target", _GUESSING)


def squares_of(loss: Tensor) -> tuple[Tensor, Tensor] | None:
    """The outputs and targets whose mean squared error this loss is, as they were broadcast; None if it is none."""
    node = loss_node(loss)
    return compared(node) if node is not None and _is_mean(node, _SQUARES) else None


def compared(node: Node) -> tuple[Tensor, Tensor] | None:
    """The outputs and targets that the node of a loss brings together, as they were broadcast; None for other nodes."""
    if node.name() not in _DISTANCES:
        return None
    outputs, targets = (kept(node, name, _GUESSING) for name in ("self", "target"))
    return None if outputs is None or targets is None else (outputs, targets)


def averaged(node: Node) -> tuple[Tensor, Tensor] | None:
    """The outputs, logits as probabilities, and targets of a mean squared error or binary cross-entropy; else None."""
    if not _is_mean(node, _SQUARES, *_BINARY):
        return None
    outputs, targets = (kept(node, name, _GUESSING) for name in ("self", "target"))
    if outputs is None or targets is None:
        return None
    return (outputs.detach().sigmoid() if node.name() == _BINARY[1] else outputs), targets


def other_factor(node: Node) -> Tensor | None:
    """The factor, or divisor, that a product's node keeps; None for other nodes."""
    return kept(node, "other", _GUESSING) if operator(node) in ("Mul", "Div") else None


def maximized(loss: Tensor) -> str:
    """The name of the loss whose negative this one is, such as "cross_entropy"; "" if it is not known to be one."""
    node = loss_node(loss)
    if node is None:
        return ""
    if node.name() == "NegBackward0":
        of = _past(node.next_functions[0][0], "ToCopyBackward0")
        return _NAMES.get(of.name(), "") if of is not None else ""
    picked = node.next_functions[0][0] if node.name() == "MeanBackward0" else None
    of = _past(picked, *_PICKS)  # the mean log-probability of the labels, without its minus
    return _NAMES[_CHOICES[0]] if of is not picked and of is not None and of.name() == "LogSoftmaxBackward0" else ""


def is_over_rows(loss: Tensor) -> bool:
    """True if this is the loss of labels, one for each row, by a log_softmax that was taken over the rows."""
    node = loss_node(loss)
    scores = node.next_functions[0][0] if node is not None and node.name() == _CHOICES[0] else None
    if scores is None or scores.name() != "LogSoftmaxBackward0":
        return False
    shape = returned_shape(scores)  # of square ones each row may be a class, in both directions
    return len(shape) == 2 and shape[0] != shape[1] and private(scores, "_saved_dim", 1, _GUESSING) in (0, _MINUS_TWO)


_MINUS_TWO = 2**64 - 2  # as autograd keeps -2

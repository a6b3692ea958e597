"""Private names of the nodes of losses: which loss a number is, its targets, and the scores that it was given."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import functional as F  # noqa: N812

from hookcli.hooks.torch_private.nodes import kept, operator, returned_shape
from hookcli.tensors.torch_private import private

_GUESSING = "whether a loss is better than guessing is not judged"
_NONE, _MEAN, _SUM = 0, 1, 2  # at::Reduction
_CHOICES = ("NllLossBackward0", "NllLoss2DBackward0")
_BINARY = ("BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0")
_MOST = 64  # terms of a loss that are looked at
_SQUARES = "MseLossBackward0"
_DISTANCES = (_SQUARES, "SmoothL1LossBackward0", "HuberLossBackward0")
_NAMES = {
    **dict.fromkeys(_CHOICES, "cross_entropy"),
    **dict.fromkeys(_BINARY, "binary_cross_entropy"),
    _SQUARES: "mse_loss",
    "SmoothL1LossBackward0": "smooth_l1_loss",
    "HuberLossBackward0": "huber_loss",
}
_SHAPES = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "ToCopyBackward0")
_TIMES_NUMBER, _VIEW = "MulBackward1", "ViewBackward0"
_SMOOTH = tuple(f"{name}Backward{n}" for name in ("Div", "Mean", "Sum", "MaskedFill", "Neg", "Mul") for n in (0, 1))
_ROWS = ("IndexBackward0", "IndexSelectBackward0", "SliceBackward0")
_PICKS = ("ViewBackward0", "SqueezeBackward1", "GatherBackward0", "IndexBackward0")


def _past(node: Node | None, *names: str) -> Node | None:
    """The first node from this one on that has none of these names."""
    while node is not None and node.name() in names:
        node = node.next_functions[0][0]
    return node


def loss_node(loss: Tensor) -> Node | None:
    """The node that made a loss, before it was cast."""
    return _past(loss.grad_fn, "ToCopyBackward0")


class Term(NamedTuple):
    """A part of a loss that counts `factor` times: the mean of the errors of a batch, or their sum if `summed`.

    With a `root`, it is the square root that this node makes of the mean, to which a number may be added.
    """

    node: Node
    factor: float
    summed: bool
    root: Node | None = None

    def times(self, number: int) -> float:
        """How often the mean of so many errors counts in the loss."""
        return self.factor * (number if self.summed else 1)


def terms_of(loss: Tensor) -> list[Term]:
    """The cross-entropies, or losses like it, whose sum this loss is; empty if a part of it is something else.

    Each counts a number of times above 0.
    """
    parts: list[Term] = []
    left: list[tuple[Node | None, float]] = [] if loss.is_complex() else [(loss_node(loss), 1.0)]
    while left:
        node, factor = left.pop()
        if node is not None and (smooth := smoothed(node)):
            node, factor = smooth.node, factor * smooth.factor
        terms = (sum_terms(node) or product_terms(node)) if node is not None else []
        if terms:
            left += [(_past(term, "ToCopyBackward0"), factor * times) for term, times in terms]
            continue
        term = reduced(node, factor) if node is not None and factor > 0 and len(parts) < _MOST else None
        if term is None:
            return []
        parts.append(term)
    return parts


class Smoothed(NamedTuple):
    """A cross-entropy whose labels are smoothed: the node of its part with labels, and how often guessing's counts.

    `share`: that of the other part, in which all classes count alike (label_smoothing).
    """

    node: Node
    factor: float
    share: float


def smoothed(node: Node) -> Smoothed | None:
    """The cross-entropy with label_smoothing that this node adds up; None for other nodes."""
    parts = [one for one, _ in node.next_functions if one is not None] if operator(node) == "Add" else []
    factors = [private(one, "_saved_other", None, _GUESSING) for one in parts if one.name() == _TIMES_NUMBER]
    if len(factors) != 2:
        return None
    labels, classes = (one.next_functions[0][0] for one in parts)
    shape = scores_shape(labels) if labels is not None else ()
    if labels is None or not shape or _past(classes, *_SMOOTH) is not _past(labels.next_functions[0][0], _VIEW):
        return None
    once, each = map(float, factors)
    factor = once + each * shape[min(1, len(shape) - 1)]
    return Smoothed(labels, factor, 1 - once / factor) if factor > 0 else None


def reduced(node: Node, factor: float) -> Term | None:
    """The part of a loss whose mean or sum this node is, by itself or of errors that were not reduced before."""
    if operator(node) == "Sqrt":
        return rooted(node, factor)
    of, each = errors_below(node)
    whole = of is not node
    if of is None or (of.name() not in _NAMES and not (whole and (divergence_in(of) or difference_in(of)))):
        return None
    reduction = private(of, "_saved_reduction", _MEAN, _GUESSING) if of.name() in _NAMES else _NONE
    if whole and reduction == _NONE:
        return Term(of, factor * each, summed=True)
    return Term(of, factor, reduction == _SUM) if not whole and reduction != _NONE else None


def errors_below(node: Node) -> tuple[Node | None, float]:
    """The node of the errors that are averaged or summed, all of them or some first, and how often each counts."""
    below: Node | None = node
    each = 1.0
    while below is not None and operator(below) in ("Mean", "Sum"):
        after = _past(below.next_functions[0][0], *_SHAPES)
        if after is not None and operator(below) == "Mean":
            each *= math.prod(returned_shape(below)) / max(math.prod(returned_shape(after)), 1)
        below = after
    return below, each


def rooted(node: Node, factor: float) -> Term | None:
    """The mean of squared errors whose square root this node is, perhaps with a small number added; else None."""
    of = _past(node.next_functions[0][0], "ToCopyBackward0")
    if of is not None and operator(of) == "Add":
        first, *others = [one for one, _ in of.next_functions if one is not None]
        of = None if others else first
    term = reduced(of, 1.0) if of is not None else None
    if term is None or term.root is not None or not (term.node.name() == _SQUARES or operator(term.node) == "Pow"):
        return None
    number = math.prod(returned_shape(term.node))  # 1 for errors that are reduced already
    is_mean = not term.summed or (number > 1 and math.isclose(term.times(number), 1))
    return Term(term.node, factor, summed=False, root=node) if is_mean else None


def added_below(root: Node, mean: Tensor) -> Tensor | None:
    """The number that was added to a mean before its root was taken; None if that is not known. Waits for nothing."""
    result = kept(root, "result", _GUESSING)
    return None if result is None else (result.detach().square() - mean).clamp(min=0)


class Choices(NamedTuple):
    """A cross-entropy in a loss, as a `Term` has it: the number of its choices, and of the classes."""

    node: Node
    factor: float
    items: int
    classes: int
    summed: bool = False


def choices_of(loss: Tensor) -> list[Choices]:
    """The cross-entropies whose sum this loss is, each times a number above 0; empty if it is another loss."""
    choices: list[Choices] = []
    for term in terms_of(loss):
        shape = scores_shape(term.node)
        if not shape:
            return []
        classes = shape[1] if shape[1:] else shape[0]
        choices.append(Choices(term.node, term.factor, math.prod(shape) // max(classes, 1), classes, term.summed))
    return choices


def scores_shape(node: Node) -> tuple[int, ...]:
    """The shape of the scores of a cross-entropy, (classes) or (choices, classes, ...); empty for other nodes.

    They may be some rows of what a log_softmax made, as where a graph's nodes are picked by a mask.
    """
    scores = _past(node.next_functions[0][0], _VIEW) if node.name() in _CHOICES else None
    of = _past(scores, _VIEW, *_ROWS)
    is_whole = of is not None and of.name() == "LogSoftmaxBackward0"
    return returned_shape(scores) if is_whole and returned_shape(scores)[-1:] == returned_shape(of)[-1:] else ()


def sum_terms(node: Node) -> list[tuple[Node, float]]:
    """The terms of a sum or a mean of numbers, each with its factor; empty for other nodes, and if one is not kept."""
    kind, following = operator(node), [one for one, _ in node.next_functions]
    factors = [1.0, 1.0]
    if kind in ("Add", "Sub"):
        factors[1] = private(node, "_saved_alpha", 1, _GUESSING) * (1 if kind == "Add" else -1)
    elif kind in ("Mean", "Sum") and following[0] is not None and operator(following[0]) == "Stack":
        following = [one for one, _ in following[0].next_functions]
        factors = [1 / len(following) if kind == "Mean" else 1.0] * len(following)
    else:
        return []
    return [] if None in following else [*zip(filter(None, following), factors, strict=True)]


def product_terms(node: Node) -> list[tuple[Node, float]]:
    """The number that is multiplied or divided by another, with this factor; empty for other nodes."""
    of = [one for one, _ in node.next_functions if one is not None]
    number = other_factor(node) if len(of) == 1 else None
    if number is None or number.numel() != 1 or number.device.type != "cpu":  # where autograd keeps a number
        return []
    value = number.item()
    return [(of[0], value if operator(node) == "Mul" else 1 / value)] if value else []


def labels_of(loss: Tensor) -> Tensor | None:
    """The labels of the choices whose cross-entropy this loss is; None if it is none."""
    node = loss_node(loss)
    return labels_in(node) if node is not None and node.name() in _CHOICES else None


def labels_in(node: Node) -> Tensor | None:
    """The labels that the node of a cross-entropy keeps; None if they are packed."""
    return kept(node, "target", _GUESSING)


def ignored_label(node: Node) -> int:
    """The label that does not count in the cross-entropy of this node (ignore_index)."""
    index: int = private(node, "_saved_ignore_index", _NO_LABEL, _GUESSING)
    return index - 2**64 if index >= 2**63 else index


_NO_LABEL = -100


def binary_targets_in(node: Node) -> Tensor | None:
    """The targets of a binary cross-entropy without weights; None for other nodes."""
    if node.name() not in _BINARY:
        return None
    weights = ["weight"] + ["pos_weight"] * (node.name() == _BINARY[1])
    weighted = any(kept(node, name, _GUESSING) is not None for name in weights)
    return None if weighted else binary_targets(node)


class Difference(NamedTuple):
    """The `values` of outputs less targets, times `sign`; `source` is the node that made the outputs, and which one."""

    values: Tensor
    source: tuple[Node, int]
    sign: int


def difference_in(node: Node) -> Difference | None:
    """What a node squares, or takes the absolute of, if it is the difference from a constant; None for other nodes."""
    is_square = operator(node) == "Pow" and private(node, "_saved_exponent", 2, _GUESSING) == 2
    minus = node.next_functions[0][0] if is_square or operator(node) == "Abs" else None
    if minus is None or operator(minus) != "Sub" or private(minus, "_saved_alpha", 1, _GUESSING) != 1:
        return None
    pairs = zip(minus.next_functions, (1, -1), strict=False)
    sources = [((one, number), sign) for (one, number), sign in pairs if one is not None]
    values = kept(node, "self", _GUESSING)
    return Difference(values, *sources[0]) if values is not None and len(sources) == 1 else None


def absolute_error(node: Node) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The mean error whose parts this node makes, if it grows with their size, and not its square; else None."""
    match operator(node):
        case "Abs":
            return F.l1_loss
        case "SmoothL1Loss":
            return partial(F.smooth_l1_loss, beta=private(node, "_saved_beta", 1.0, _GUESSING))
        case "HuberLoss":
            return partial(F.huber_loss, delta=private(node, "_saved_delta", 1.0, _GUESSING))
    return None


def divergence_in(node: Node) -> tuple[Tensor, Node] | None:
    """The targets of a divergence (kl_div), and the node that made its input; None for other nodes.

    kl_div is xlogy(t, t) - t * x, which is reduced then; log_target=True, which is t.exp() * (t - x), is not looked at.
    """
    first, product = [*(one for one, _ in node.next_functions), None, None][:2]
    if operator(node) != "Sub" or product is None or operator(product) != "Mul":
        return None
    if first is not None and operator(first) != "Xlogy":  # which is a constant if the targets are
        return None
    source, targets = product.next_functions[1][0], kept(product, "self", _GUESSING)
    if source is None or targets is None or tuple(targets.shape) != returned_shape(node):
        return None
    return targets, source


def log_probabilities_in(node: Node) -> Tensor | None:
    """The values that a negative log-likelihood takes for log-probabilities; None for other nodes."""
    return kept(node, "self", _GUESSING) if node.name() in _CHOICES else None


def ctc_log_probabilities(node: Node) -> Tensor | None:
    """The values (T, N, C) or (T, C) that a ctc_loss takes for log-probabilities; None for other nodes."""
    return kept(node, "log_probs", _GUESSING) if operator(node) == "CtcLoss" else None


def ctc_targets(node: Node) -> tuple[Tensor, Tensor, int] | None:
    """The targets (N, S) or (sum of lengths) of a ctc_loss, the lengths of each row, and its blank; else None."""
    targets = kept(node, "targets", _GUESSING) if operator(node) == "CtcLoss" else None
    if targets is None:
        return None
    lengths = private(node, "_saved_target_lengths", (), _GUESSING)
    return targets, torch.as_tensor(lengths, device=targets.device), private(node, "_saved_blank", 0, _GUESSING)


def binary_targets(node: Node) -> Tensor | None:
    """The targets of a binary cross-entropy; None for other nodes."""
    return kept(node, "target", _GUESSING) if node.name() in _BINARY else None


def normalized_dimension(node: Node) -> int | None:
    """The dimension over which a softmax or log_softmax is taken, from 0 on; None for other nodes."""
    if node.name() not in ("SoftmaxBackward0", "LogSoftmaxBackward0"):
        return None
    dim: int = private(node, "_saved_dim", 1, _GUESSING)
    return dim - 2**64 + len(returned_shape(node)) if dim >= 2**63 else dim


def class_weights(node: Node) -> Tensor | None:
    """The weights of the classes of a cross-entropy; None without any."""
    return kept(node, "weight", _GUESSING)


def compared(node: Node) -> tuple[Tensor, Tensor] | None:
    """The outputs and targets that the node of a loss brings together, as they were broadcast; None for other nodes."""
    if node.name() not in _DISTANCES:
        return None
    outputs, targets = (kept(node, name, _GUESSING) for name in ("self", "target"))
    return None if outputs is None or targets is None else (outputs, targets)


def averaged(node: Node) -> tuple[Tensor, Tensor] | None:
    """The outputs, logits as probabilities, and targets of a mean squared error or binary cross-entropy; else None."""
    if node.name() not in (_SQUARES, *_BINARY) or private(node, "_saved_reduction", _MEAN, _GUESSING) != _MEAN:
        return None
    outputs, targets = (kept(node, name, _GUESSING) for name in ("self", "target"))
    if outputs is None or targets is None:
        return None
    return (outputs.detach().sigmoid() if node.name() == _BINARY[1] else outputs), targets


def other_factor(node: Node) -> Tensor | None:
    """The factor, or divisor, that a product's node keeps; None for other nodes."""
    return kept(node, "other", _GUESSING) if operator(node) in ("Mul", "Div") else None


def constant_factor(node: Node) -> Tensor | None:
    """The constant by which a product's node multiplies or divides its only other input; None for other nodes."""
    if operator(node) not in ("Mul", "Div") or sum(one is not None for one, _ in node.next_functions) != 1:
        return None
    second = kept(node, "other", _GUESSING)
    is_of_tensors = node.name().endswith("Backward0")  # else its second input is a number, and it keeps no first one
    return kept(node, "self", _GUESSING) if second is None and is_of_tensors else second


def multiplied_matrices(node: Node) -> tuple[Tensor, Tensor] | None:
    """The matrices (..., N, D) and (..., D, M) of a product that keeps both, as both have gradients; else None."""
    if operator(node) not in ("Mm", "Bmm"):
        return None
    first, second = (kept(node, name, _GUESSING) for name in ("self", "mat2"))
    return None if first is None or second is None else (first, second)


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
    return len(shape) == 2 and shape[0] != shape[1] and normalized_dimension(scores) == 0

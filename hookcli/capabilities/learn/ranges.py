"""Numbers out of range: targets that a model can't return, and what a loss gets for probabilities that are none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.torch_private.losses import binary_targets, compared, log_probabilities_in
from hookcli.hooks.torch_private.nodes import operator
from hookcli.probes.shared.doubled import ARRANGES, sources
from hookcli.tensors import tree

_RANGES = {
    "Relu": ("ReLU", 0.0, math.inf),
    "Softplus": ("Softplus", 0.0, math.inf),
    "Sigmoid": ("Sigmoid", 0.0, 1.0),
    "Softmax": ("Softmax", 0.0, 1.0),
    "Tanh": ("Tanh", -1.0, 1.0),
}
_ROUNDED = 1e-3
_NORMALIZED = {"LogSoftmax", "Softmax"}  # HK034 reports a softmax that goes into nll_loss
_NOISE, _FEW = 0.5, 0.1  # as labels have on purpose, and the share of them that it may carry farther
_HALVES = {"Relu": "a ReLU before the sigmoid", "Softplus": "a Softplus before the sigmoid"}


def beyond(losses: Iterable[Tensor], nodes: Sequence[Node]) -> tuple[str, Tensor] | None:
    """The function that makes the outputs which these losses compare, with its range, and the share of targets beyond.

    `nodes` are those that sum the terms of the losses. None if nothing is compared. Waits for nothing.
    """
    for node in compares(losses, nodes):
        found = range_of_squares(node) or range_of_sigmoid(node)
        if found and tree.is_plain(found[3]):
            name, least, most, targets = found
            range_ = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
            return f"{name} ({range_})", share_outside(targets, least, most)
    return None


def compares(losses: Iterable[Tensor], nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes of the terms of these losses, which these `nodes` sum."""
    yield from (loss.grad_fn for loss in losses if loss.grad_fn is not None)
    yield from (after for node in nodes for after, _ in node.next_functions if after is not None)


def range_of_squares(node: Node) -> tuple[str, float, float, Tensor] | None:
    """The function that made the outputs of a squared error and its like, its range, and the targets; else None."""
    pair = compared(node)
    made = {operator(one) for one in sources(node)} - ARRANGES if pair else set()
    return (*_RANGES[made.pop()], pair[1]) if pair and len(made) == 1 and made <= _RANGES.keys() else None


def range_of_sigmoid(node: Node) -> tuple[str, float, float, Tensor] | None:
    """As `range_of_squares`, for a binary cross-entropy whose sigmoid gets numbers of 0 or more; else None."""
    targets = binary_targets(node)
    if targets is None:
        return None
    if operator(node) == "BinaryCrossEntropy":
        sigmoids = [one for one in sources(node) if operator(one) == "Sigmoid"]
        node = sigmoids[0] if len(sigmoids) == 1 else node
    made = {operator(one) for one in sources(node)} - ARRANGES
    return (_HALVES[made.pop()], 0.5, 1.0, targets) if len(made) == 1 and made <= _HALVES.keys() else None


def share_outside(values: Tensor, least: float, most: float) -> Tensor:
    """The share of values that are out of this range. Waits for nothing."""
    with torch.no_grad():
        known = values.detach()
        outside = (known < least - _ROUNDED) | (known > most + _ROUNDED)
        return outside.mean(dtype=torch.float32)


class Unlikely(NamedTuple):
    """Numbers that a loss takes for probabilities, or for their logarithms; a `share` of them is out of range.

    `words` follow the share; it is a fault if it is more than `few`.
    """

    words: str
    share: Tensor
    few: float


def no_probabilities(losses: Iterable[Tensor], nodes: Sequence[Node]) -> Unlikely | None:
    """The numbers that one of these losses takes for probabilities; None without any, or if a log_softmax made them.

    Waits for nothing.
    """
    for node in compares(losses, nodes):
        if (targets := binary_targets(node)) is not None and tree.is_plain(targets) and targets.numel():
            words = "of the targets of binary_cross_entropy are not between 0 and 1"
            return Unlikely(words, share_outside(targets, -_NOISE, 1 + _NOISE), _FEW)
        values = log_probabilities_in(node)
        made = {operator(one) for one in sources(node)} if values is not None else set()
        if values is not None and not made & _NORMALIZED and tree.is_plain(values) and values.numel():
            words = "of what nll_loss gets for log-probabilities is above 0: put log_softmax before it"
            return Unlikely(words, share_outside(values, -math.inf, 0.0), 0.0)
    return None

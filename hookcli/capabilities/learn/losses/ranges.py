"""Numbers out of range: targets that a model can't return, and what a loss gets for probabilities that are none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.losses import (
    Choices,
    Term,
    binary_targets,
    compared,
    ctc_log_probabilities,
    ctc_targets,
    divergence_in,
    ignored_label,
    labels_in,
    log_probabilities_in,
    multiplied_matrices,
    normalized_dimension,
    product_terms,
)
from hookcli.hooks.torch_private.nodes import operator, returned_shape
from hookcli.probes.shared.doubled import ARRANGES, sources
from hookcli.table.formatting import percent
from hookcli.tensors import tree

_RANGES = {
    "Relu": ("ReLU", 0.0, math.inf),
    "Softplus": ("Softplus", 0.0, math.inf),
    "Sigmoid": ("Sigmoid", 0.0, 1.0),
    "Softmax": ("Softmax", 0.0, 1.0),
    "Tanh": ("Tanh", -1.0, 1.0),
}
_ROUNDED, _SUM = 1e-3, 0.02  # of a number, and of the sum of probabilities in bfloat16
_NORMALIZED = {"LogSoftmax", "Softmax"}  # HK034 reports a softmax that goes into nll_loss
_NOISE, _FEW = 0.5, 0.1  # as labels have on purpose, and the share of them that it may carry farther
_FLAT, _NEAR = 0.5, 0.7  # times a cosine, which no temperature in use gives; of the loss of guessing
_LOOKED_AT = 64  # nodes
_DIMENSIONS = ("the rows of the batch (dim=0)", "the classes (dim=1)")
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
    """Numbers that a loss takes for probabilities, their logarithms or scores; a `share` of them is out of range.

    `words` have the share at "{}"; it is a fault if it is more than `few`.
    """

    words: str
    share: Tensor
    few: float


def words_on(numbers: Sequence[Unlikely]) -> str:
    """Words on the first of these of which too many are out of range; "" if none are. Waits for an accelerator."""
    for one in numbers:
        if (share := float(one.share)) > one.few:
            return one.words.format(percent(share))
    return ""


def no_probabilities(losses: Iterable[Tensor], nodes: Sequence[Node]) -> Unlikely | None:
    """The numbers that one of these losses takes for probabilities; None without any, or if a log_softmax made them.

    Waits for nothing.
    """
    for node in compares(losses, nodes):
        if (targets := binary_targets(node)) is not None and tree.is_plain(targets) and targets.numel():
            words = "{} of the targets of binary_cross_entropy are not between 0 and 1"
            return Unlikely(words, share_outside(targets, -_NOISE, 1 + _NOISE), _FEW)
        values = log_probabilities_in(node)
        made = {operator(one) for one in sources(node)} if values is not None else set()
        if values is not None and not made & _NORMALIZED and tree.is_plain(values) and values.numel():
            words = "{} of what nll_loss gets for log-probabilities is above 0: put log_softmax before it"
            return Unlikely(words, share_outside(values, -math.inf, 0.0), 0.0)
    return None


def no_alignment(nodes: Iterable[Node]) -> Iterator[Unlikely]:
    """Yield words on the targets of a ctc_loss, none of which is its blank, and on what it takes for log-probabilities.

    Those of all classes add up to 1. Waits for nothing.
    """
    for node in islice(walk(nodes, lambda one: operator(one) not in _NORMALIZED), _LOOKED_AT):
        values, known = ctc_log_probabilities(node), ctc_targets(node)
        if known is not None and tree.is_plain(known[0]) and known[0].numel():
            yield blanks(*known)
        if values is not None and tree.is_plain(values) and values.numel():
            words = "in {} of the time steps the exponentials of what ctc_loss gets do not add up to 1"
            with torch.no_grad():
                off = ((values.detach().float().exp().sum(-1) - 1).abs() > _SUM).mean(dtype=torch.float32)
            yield Unlikely(f"{words}: put log_softmax before it", off, _NOISE)


def blanks(targets: Tensor, lengths: Tensor, blank: int) -> Unlikely:
    """Words on targets of a ctc_loss that are its blank, within the `lengths` of their rows. Waits for nothing."""
    what = f"{{}} of the targets of ctc_loss are its blank ({blank}), which stands for no label"
    with torch.no_grad():
        counts = torch.ones_like(targets, dtype=torch.bool)
        if targets.dim() == 2:
            counts = torch.arange(targets.shape[1], device=targets.device) < lengths[:, None]
        share = ((targets == blank) & counts).sum() / counts.sum()
    return Unlikely(f"{what}: number the labels without it, or give ctc_loss the model's blank", share, 0.0)


def ignoring_all(losses: Sequence[Tensor], nodes: Sequence[Node]) -> Iterator[Unlikely]:
    """Yield words on each cross-entropy that makes the loss NaN, as it ignores all labels. Waits for nothing."""
    for node in nodes if len(losses) == 1 else ():
        labels = labels_in(node) if log_probabilities_in(node) is not None else None
        if labels is not None and tree.is_plain(labels) and labels.numel():
            ignored = ignored_label(node)
            all_ignored = (labels == ignored).all().to(losses[0].device) & losses[0].detach().isnan()
            words = f"all {labels.numel():,} labels are {ignored}, which cross_entropy ignores (ignore_index)"
            yield Unlikely(f"{words}: the mean over no label is NaN", all_ignored, 0.0)


def no_divergence(losses: Sequence[Tensor], terms: Sequence[Term]) -> Unlikely | None:
    """Words on a kl_div among these terms of the only loss that gets no log-probabilities, or over another dimension.

    Targets must be probabilities of more than one class, so that other differences of products are left out: then the
    share is 1, else 0. Of other inputs than a softmax's it must be the whole loss, and below 0. Waits for nothing.
    """
    for term in terms:
        targets, source = divergence_in(term.node) or (None, None)
        if targets is None or source is None or not tree.is_plain(targets) or not targets.numel():
            continue
        if words := divergence_of_softmax(targets, source):
            return words
        if len(terms) == 1 and normalized_dimension(source) is None:
            what = "kl_div is below 0, as no divergence is: its input is no log-probabilities"
            rows = targets.numel() // targets.shape[-1]
            is_below = losses[0].detach() < -2 * _SUM * term.factor * rows  # more than targets that are rounded explain
            return Unlikely(f"{what}; put log_softmax before it", is_below & soft_over(targets, -1), 0.0)
    return None


def divergence_of_softmax(targets: Tensor, source: Node) -> Unlikely | None:
    """As `no_divergence`, on a kl_div whose input is a softmax, or a log_softmax of a table; None for other inputs."""
    made = {*map(operator, sources(source))} if operator(source) in ARRANGES else {operator(source)}
    if "Softmax" in made:
        words = "kl_div gets the output of a softmax, and expects log-probabilities: use log_softmax instead"
        return Unlikely(words, soft_over(targets, min(1, targets.dim() - 1)) | soft_over(targets, -1), 0.0)
    dim = normalized_dimension(source) if targets.dim() == 2 else None
    if dim is None:
        return None
    over, others = _DIMENSIONS[dim], _DIMENSIONS[1 - dim]
    words = f"kl_div compares a log_softmax over {over} with targets that add up to 1 over {others}"
    return Unlikely(words, soft_over(targets, 1 - dim) & ~soft_over(targets, dim), 0.0)


def soft_over(targets: Tensor, dim: int) -> Tensor:
    """True if targets add up to 1 over this dimension, and more than one of them counts. Waits for nothing."""
    with torch.no_grad():
        known = targets.detach()
        sums = known.sum(dim, dtype=torch.float32)
        is_soft = ((known > 0) & (known < 1 - _ROUNDED)).any()
        return ((sums - 1).abs() < _SUM).all() & (known >= 0).all() & is_soft


def unscaled(choices: Choices) -> tuple[Node | None, float]:
    """The node of the scores of a cross-entropy before they were scaled, and by what: NaN for a trained number."""
    softmaxes = (node for node in walk([choices.node]) if operator(node) == "LogSoftmax")
    node, factor = next(softmaxes, choices.node).next_functions[0][0], 1.0
    while node is not None and (numbers := product_terms(node) or of_trained(node)):
        node, factor = numbers[0][0], factor * numbers[0][1]
    return node, factor


def of_trained(node: Node) -> list[tuple[Node, float]]:
    """The values that a number of the graph multiplies or divides, with NaN for it; empty for other nodes."""
    of = [one for one, _ in node.next_functions if one is not None]
    values = [one for one in of if math.prod(returned_shape(one)) > 1]
    return [(values[0], math.nan)] if operator(node) in ("Mul", "Div") and (len(of), len(values)) == (2, 1) else []


def has_layer(product: Node, number: int) -> bool:
    """True if a matrix of a product is a parameter of so many rows, as of a last layer, or computed from one alone."""
    for matrix, _ in product.next_functions:
        nodes = islice(walk([matrix] if matrix is not None else []), _LOOKED_AT)
        leaves = [returned_shape(node) for node in nodes if operator(node) == "AccumulateGrad"]
        if not leaves or (len(leaves) == 1 and number in leaves[0]):
            return True
    return False


def flat_cosines(choices: Sequence[Choices]) -> Unlikely | None:
    """Words on a cross-entropy of cosines that are multiplied by next to nothing; None without any. Waits for nothing.

    Cosines lie between -1 and 1: times s, the loss among C classes is ln(1 + (C - 1) exp(-2 s)) at least. Contrastive
    losses may have no temperature on purpose (MoCo v3), a last layer with a thousand classes hardly.
    """
    for one in choices:
        node, factor = unscaled(one)
        is_flat = node is not None and (abs(factor) < _FLAT or (abs(factor) <= 1 and has_layer(node, one.classes)))
        matrices = multiplied_matrices(node) if node is not None and is_flat else None
        least, most = (math.log1p((one.classes - 1) * math.exp(-2 * abs(x))) for x in (factor, 0.0))
        if matrices is None or least < _NEAR * most or not all(map(tree.is_plain, matrices)):
            continue
        with torch.no_grad():
            norms = [x.detach().float().norm(dim=dim) for x, dim in zip(matrices, (-1, -2), strict=True)]
            are_cosines = torch.stack([((norm - 1).abs() < _SUM).all() for norm in norms]).all()
        can_not = f"its loss can't fall below {least:.4g}, where guessing has ln {one.classes:,} = {most:.4g}"
        what = f"cross_entropy gets cosine similarities times {factor:.3g}, so that {can_not}"
        return Unlikely(f"{what}: divide by the temperature", are_cosines, 0.0)
    return None

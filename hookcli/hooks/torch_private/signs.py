"""Private names of autograd's nodes that hold the targets of losses which expect 1 and -1."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.torch_private.losses import constant_factor
from hookcli.hooks.torch_private.nodes import kept, operator

_UNSIGNED = "targets of 0 and 1 in a loss that expects 1 and -1 are not named"
_AT_LEAST = ("ClampMin", "Clamp", "Relu")


class Signs(NamedTuple):
    """Where the targets of the loss `name` are `positive`, 1, and where they are `negative`, -1."""

    name: str
    positive: Tensor
    negative: Tensor


def signs_in(node: Node) -> Signs | None:
    """The targets of a loss that expects 1 and -1, one for each row; None for other nodes. Waits for nothing."""
    kind = operator(node)
    if kind == "SoftMarginLoss":
        targets = kept(node, "target", _UNSIGNED)
        return signs_of("soft_margin_loss", targets) if targets is not None else None
    if kind == "Add":
        return signs_of_embedding(node)
    return signs_of_margin(node) if kind in _AT_LEAST else None


def signs_of(name: str, targets: Tensor) -> Signs:
    """The signs of targets as they are."""
    return Signs(name, targets == 1, targets == -1)


def signs_of_embedding(node: Node) -> Signs | None:
    """The targets of a sum of two `where`, as cosine_embedding_loss and hinge_embedding_loss have it."""
    parts = [one for one, _ in node.next_functions if one is not None]
    if len(parts) != 2 or {*map(operator, parts)} != {"Where"}:
        return None
    kinds = [{operator(below) for below, _ in one.next_functions if below is not None} for one in parts]
    first, second = (kept(one, "condition", _UNSIGNED) for one in parts)
    if first is None or second is None or first.shape != second.shape:
        return None
    if kinds[0] == {"ClampMin"}:
        return Signs("hinge_embedding_loss", ~first, ~second)
    return Signs("cosine_embedding_loss", first, second) if kinds == [{"Sub"}, {"ClampMin"}] else None


def signs_of_margin(node: Node) -> Signs | None:
    """The targets of a hinge: what is left above 0 of a margin less targets times differences of scores."""
    margin = node.next_functions[0][0]
    product = margin.next_functions[0][0] if margin is not None and operator(margin) in ("Add", "Rsub") else None
    targets = constant_factor(product) if product is not None and operator(product) == "Mul" else None
    if margin is None or targets is None or targets.dim() == 0:
        return None
    return signs_of("the margin loss", targets if operator(margin) == "Rsub" else -targets)

"""Private names of autograd's nodes by which the multiplications of a pass are counted, without running anything."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import Node

from hookcli.hooks.torch_private.nodes import kept, operator, returned, returned_shape
from hookcli.tensors.torch_private import private

_UNCOUNTED = "the multiplications of a step are not counted"
_PRODUCTS = {
    **dict.fromkeys(("Mm", "Bmm", "Mv", "Linear"), (0, 1)),
    **dict.fromkeys(("Addmm", "Baddbmm", "Addmv"), (1, 2)),
}
"""The places of the two factors, by the name of a product's node."""
_ATTENTION = re.compile("ScaledDotProduct|FlashAttention|EfficientAttention")
_HIDDEN = re.compile("CompiledFunction|CheckpointFunction|Rnn|Lstm|Gru|FlashAttn", re.IGNORECASE)
"""Nodes behind which multiplications are that no node shows. So may be a convolution, if its weight is frozen and hooks
have packed it."""


@dataclass
class GraphWork:
    """The multiply-accumulate operations of a forward whose graph this is, and of its backward pass, by dtype."""

    forward: Counter[torch.dtype] = field(default_factory=Counter)
    backward: Counter[torch.dtype] = field(default_factory=Counter)
    hidden: str = ""
    """The name of a node that may hide others; "" if there is none."""


def work_of(nodes: Iterable[Node]) -> GraphWork:
    """Count the matrix products, convolutions and attentions of the nodes of a graph.

    Backward makes a product for each factor that gets a gradient; attention's backward makes twice the products of its
    forward. Parts without a graph, such as frozen layers that receive no gradient, are not counted.
    """
    work = GraphWork()
    for node in nodes:
        name, made = operator(node), returned(node)
        unknown = name == "Convolution" and not _shape(node, 1) and kept(node, "weight", _UNCOUNTED) is None
        if unknown or _HIDDEN.search(name):
            work.hidden = name
        if not made:
            continue
        macs, gradients = _macs(node, name, made[0])
        if macs:
            work.forward[made[0].dtype] += macs
            work.backward[made[0].dtype] += macs * gradients
    return work


def _macs(node: Node, name: str, output: Any) -> tuple[int, int]:
    """The operations of the forward of a node, and how many times as many its backward takes."""
    of_output = math.prod(output.shape)
    if name in _PRODUCTS:
        first, second = (_shape(node, place) for place in _PRODUCTS[name])
        of_second = second[-1:] if name == "Linear" else second[-2:][:1]  # a vector has its only one
        inner = first[-1] if first else math.prod(of_second) * bool(second)
        return of_output * inner, bool(first) + bool(second)
    if name == "Convolution":
        received, weight = _shape(node, 0), _shape(node, 1)
        weight = weight or (() if (frozen := kept(node, "weight", _UNCOUNTED)) is None else tuple(frozen.shape))
        by = math.prod(received) if private(node, "_saved_transposed", False, _UNCOUNTED) else of_output
        return by * math.prod(weight[1:]), bool(received) + bool(_shape(node, 1))
    if _ATTENTION.search(name):
        keys = _shape(node, 1) or _shape(node, 0)
        return 2 * of_output * keys[-2] if keys else 0, 2
    return 0, 0


def _shape(node: Node, place: int) -> tuple[int, ...]:
    """The shape of a tensor that the operator of a node received and that gets a gradient; () of any other."""
    if place >= len(node.next_functions):
        return ()
    return returned_shape(*node.next_functions[place])

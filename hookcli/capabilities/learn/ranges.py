"""Targets that a model can't return, as the function that makes its outputs has a narrower range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.torch_private.losses import compared
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


def beyond(losses: Iterable[Tensor], nodes: Sequence[Node]) -> tuple[str, Tensor] | None:
    """The function that makes the outputs which these losses compare, with its range, and the share of targets beyond.

    `nodes` are those that sum the terms of the losses. None if nothing is compared. Waits for nothing.
    """
    ends = [loss.grad_fn for loss in losses]
    terms = [after for node in nodes for after, _ in node.next_functions]
    for node in filter(None, [*ends, *terms]):
        pair = compared(node)
        made = {operator(one) for one in sources(node)} - ARRANGES if pair else set()
        if pair and len(made) == 1 and (operator_name := made.pop()) in _RANGES and tree.is_plain(pair[1]):
            name, least, most = _RANGES[operator_name]
            targets = pair[1].detach()
            with torch.no_grad():
                outside = (targets < least - _ROUNDED) | (targets > most + _ROUNDED)
                range_ = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
                return f"{name} ({range_})", outside.mean(dtype=torch.float32)
    return None

"""Targets of 0 and 1 in a loss that expects 1 and -1: those of 0 teach nothing, or the wrong."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import torch
from torch.autograd.graph import Node

from hookcli.capabilities.learn.losses.ranges import Unlikely
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.nodes import operator
from hookcli.hooks.torch_private.signs import signs_in
from hookcli.tensors import tree

_LEAST, _FEW = 8, 0.1  # rows; the share of them whose pairs may be unknown
_LOOKED_AT = 16  # nodes
_SUMS = {"Mean", "Sum", "Add", "Mul", "Div", "View", "Squeeze", "ToCopy"}


def without_signs(ends: Iterable[Node]) -> Unlikely | None:
    """Words on targets that are 1, or no sign, where 1 and -1 are expected; None without any. Waits for nothing.

    A loss that knows of a pair whether it is alike or not may leave others out, by a 0 beside -1.
    """
    for node in islice(walk(ends, lambda one: operator(one) in _SUMS or signs_in(one) is not None), _LOOKED_AT):
        signs = signs_in(node)
        if signs is None or not all(map(tree.is_plain, signs[1:])) or signs.positive.numel() < _LEAST:
            continue
        words = f"{{}} of the targets of {signs.name} are neither 1 nor -1, and no target is -1"
        with torch.no_grad():
            others = (~(signs.positive | signs.negative)).mean(dtype=torch.float32)
            unsigned = signs.positive.any() & ~signs.negative.any()
        return Unlikely(f"{words}: give it 2 * target - 1", others * unsigned, _FEW)
    return None

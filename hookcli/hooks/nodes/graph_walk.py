"""Walks over the autograd graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import graph
from torch.autograd.graph import Node

from hookcli.tensors.tree import is_dense


def walk(ends: Iterable[Node], wanted: Callable[[Node], bool] = lambda node: True) -> Iterator[Node]:
    """Yield the nodes that are reached from `ends`, breadth first, each once; the walk stops at unwanted ones."""
    waiting = deque(ends)
    seen = set(waiting)
    waiting = deque(dict.fromkeys(waiting))
    while waiting:
        node = waiting.popleft()
        if not wanted(node):
            continue
        yield node
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                waiting.append(after)


def nodes_of(roots: Iterable[Tensor]) -> list[Node]:
    """Return the nodes that created these tensors; for a leaf, its gradient accumulator."""
    return [root.grad_fn or gradient_accumulator(root) for root in roots]


def gradient_accumulator(leaf: Tensor) -> Node:
    """Return the AccumulateGrad node of a leaf that requires grad; asking for it may create it."""
    if is_dense(leaf):
        return graph.get_gradient_edge(leaf).node
    with torch.enable_grad():  # the edge is found by a view, which sparse and nested tensors don't have
        node: Any = leaf.clone().grad_fn
    accumulator: Node = node.next_functions[0][0]
    return accumulator

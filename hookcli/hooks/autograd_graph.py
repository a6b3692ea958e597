"""Walks over the autograd graph, and its nodes that no tensor leads to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.autograd import graph
from torch.autograd.graph import Node


def walk(ends: Iterable[Node], wanted: Callable[[Node], bool] = lambda node: True) -> Iterator[Node]:
    """The graph from its ends backward, breadth first, each node once; of what is not wanted nothing beyond."""
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
    """The nodes that made these tensors; of a leaf its gradient accumulator."""
    return [root.grad_fn or gradient_accumulator(root) for root in roots]


def gradient_accumulator(leaf: Tensor) -> Node:
    """The AccumulateGrad node of a leaf that requires grad, which PyTorch makes when it is first asked for."""
    return graph.get_gradient_edge(leaf).node


def queue_callback(callback: Callable[[], None]) -> None:
    """Have autograd call back when the backward pass that is running is over."""
    public = getattr(graph, "queue_callback", None)
    queue = public or torch.autograd.Variable._execution_engine.queue_callback
    queue(callback)

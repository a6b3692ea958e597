"""Tensors that a call received, and whether a tensor was changed in place since."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.autograd.graph import Node

from hookcli.hooks.events import HookEvent

Edge = tuple[Node, int] | int
"""A place in the graph: a node and the number of its output; of a leaf the id of the tensor."""


class TensorVersion:
    """The version of a tensor, without keeping its memory: `changed` tells whether it was changed in place since.

    PyTorch has no public access to a version counter: here is an empty tensor that shares it. An in-place change to a
    view, or to another view of its memory, gives the view another node, which drops the hooks on the view.
    """

    __slots__ = ("_counter", "_then")

    def __init__(self, tensor: Tensor) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            self._counter = tensor.detach()
            self._counter.data = self._counter.new_empty(0)
        self._then = tensor._version

    @classmethod
    def of_view(cls, tensor: Tensor) -> Self | None:
        """None for a tensor that is no view: its hooks stay with its value."""
        return cls(tensor) if tensor._is_view() and not tensor.is_inference() else None

    def changed(self) -> bool:
        """Whether the tensor, or memory that it shares, was changed since."""
        return self._counter._version != self._then


@dataclass(slots=True)
class ReceivedTensor:
    """A tensor that a call received, and the gradients that have arrived from the nodes that the call made of it.

    `made` counts these nodes, `arrived` those whose gradients are in `total`.
    """

    edge: Edge
    events: list[HookEvent]
    shape: torch.Size | None
    version: int
    made: int = 0
    arrived: int = 0
    total: Tensor | None = None
    handed_on: bool = False
    lost: bool = False
    views: list[TensorVersion] = field(default_factory=list)

    def add(self, grad: Tensor) -> None:
        """Add what one node hands on, in the tensor's own shape: PyTorch sums what was broadcast after hooks ran."""
        if self.shape is not None and grad.shape != self.shape:
            grad = grad.sum_to_size(self.shape)
        self.total = grad if self.total is None else self.total + grad

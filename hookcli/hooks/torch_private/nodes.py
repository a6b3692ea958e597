"""Private names of autograd's nodes that say what their operators returned; and the names of these operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from torch.autograd.graph import Node

from hookcli.tensors.torch_private import getter

_UNKNOWN = "whether a loss is better than guessing is not judged, nor are the multiplications of a step counted"
returned: Callable[[Node], Sequence[Any]] = getter(Node, "_input_metadata", lambda node: (), _UNKNOWN)
"""The shapes and dtypes of what a node's operator returned, whose gradients are the node's inputs."""


def returned_shape(node: Node | None, output: int = 0) -> tuple[int, ...]:
    """The shape of one output of a node's operator; empty for a scalar, and where it is not known."""
    made = returned(node) if node is not None else ()
    return tuple(made[output].shape) if output < len(made) else ()


_ENDING = re.compile(r"Backward\d*$")


def operator(node: Node) -> str:
    """The operator that made a node: "Addmm" for AddmmBackward0."""
    return _ENDING.sub("", node.name().rpartition("::")[2])

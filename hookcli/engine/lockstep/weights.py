"""Copies one model's weights into another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hookcli.diff.align import Alignment


def copy_weights(a: nn.Module, b: nn.Module, alignment: Alignment) -> str | None:
    """Copy A's parameters and buffers into their counterparts in B, cast and moved as needed.

    Returns a remark on tensors of B without a counterpart of their shape; None if all were copied.
    """
    state = b.state_dict()
    ours = {alignment.counterpart(name): value for name, value in a.state_dict().items()}
    left = [name for name, value in state.items() if not _fits(ours.get(name), value)]
    with torch.no_grad():
        for name, value in state.items():
            if name not in left and isinstance(value, Tensor):
                value.copy_(ours[name])
    if not left:
        return None
    names = ", ".join(left[:3]) + (", ..." if left[3:] else "")
    return f"--same-weights: {len(left)} of {len(state)} tensors of B have no counterpart of their shape in A ({names})"


def _fits(ours: Any, theirs: Any) -> bool:
    if not isinstance(theirs, Tensor):
        return True  # extra state belongs to the module
    return isinstance(ours, Tensor) and ours.shape == theirs.shape

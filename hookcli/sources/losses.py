"""Losses: those that suit the kinds of models, and those that users can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy

from hookcli.errors import UsageError
from hookcli.tensors import tree


def floating(output: Any) -> list[Tensor]:
    """The floating-point or complex tensors of an output, in order."""
    return [t for _, t in tree.leaves(output) if t.is_floating_point() or t.is_complex()]


def reduce_all(output: Any, *, how: str) -> Tensor:
    """The sum or mean of each floating-point tensor of the output, added up; complex ones by magnitude."""
    parts = [getattr(t.abs() if t.is_complex() else t, how)() for t in floating(output)]
    if not parts:
        raise UsageError(f"loss {how}: the model returned no floating-point tensor", option="loss")
    return torch.stack([part.float() for part in parts]).sum() if len(parts) > 1 else parts[0]


def cross_entropy(output: Any, *, auxiliary: float = 0.3) -> Tensor:
    """Cross entropy against class 0, per pixel or position if the output has more than two dimensions.

    Auxiliary outputs are added with a weight: 0.3 for classifiers (Szegedy et al. 2015, section 5),
    0.5 for segmentation (torchvision's reference training).
    """
    logits = [t for t in floating(output) if t.dim() >= 2]
    if not logits:
        raise UsageError(
            "loss cross-entropy: the model returned no floating-point tensor of shape NxC or NxCx...", option="loss"
        )
    losses = [
        torch_cross_entropy(t, torch.zeros((t.shape[0], *t.shape[2:]), dtype=torch.long, device=t.device))
        for t in logits
    ]
    return losses[0] + auxiliary * torch.stack(losses[1:]).sum() if len(losses) > 1 else losses[0]


def own_losses(output: Any) -> Tensor:
    """The sum of the dictionary of losses that a detector returns in training."""
    if not isinstance(output, Mapping):
        raise UsageError("a detector returns its losses in training mode only: remove --eval, or give --loss sum")
    return torch.stack([value for value in output.values() if isinstance(value, Tensor)]).sum()


def flow_sequence(output: Any) -> Tensor:
    """The L1 distance of each refinement to zero flow, weighted 0.8^(n-1-i) (Teed and Deng 2020, equation 7)."""
    flows = floating(output)
    return torch.stack([0.8 ** (len(flows) - 1 - i) * flow.abs().mean() for i, flow in enumerate(flows)]).sum()


NAMED: dict[str, Callable[[Any], Tensor]] = {
    "sum": partial(reduce_all, how="sum"),
    "mean": partial(reduce_all, how="mean"),
    "cross-entropy": cross_entropy,
}

"""Targets that are noise, and not the noise that was added to the input, as of a diffusion model."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan, sqrt

import torch
from torch import Tensor

from hookcli.tensors import tree

_LEAST, _MOST = 256, 2**20  # values
_FAR = 5  # standard errors


def likeness(targets: Tensor, inputs: Iterable[Tensor]) -> tuple[Tensor, int] | None:
    """How targets that are as torch.randn returns them are correlated with the input of their size, and their number.

    NaN for others; None if no input has their size, or a row has one number. Noise that was added to an input is
    correlated with it. Waits for nothing.
    """
    x = next((x for x in inputs if x.shape[:1] == targets.shape[:1] and x.numel() == targets.numel()), None)
    if (
        x is None
        or targets.numel() < max(_LEAST, 2 * len(targets))
        or not (tree.is_plain(targets) and targets.is_floating_point())
    ):
        return None
    with torch.no_grad():
        y, x = (of.detach().reshape(-1)[:_MOST].float() for of in (targets, x))
        second, fourth = y.square().mean(), y.square().square().mean()
        product = (y * x).mean() / x.square().mean().sqrt()
        figures = torch.stack([y.mean(), (second - 1) / sqrt(2), (fourth - 3) / sqrt(96)])
        return product.where((figures.abs() < _FAR / sqrt(len(y))).all(), nan), len(y)

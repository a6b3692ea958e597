"""The edits that are built in."""

from __future__ import annotations

import torch
from torch import Tensor


def zero(x: Tensor) -> Tensor:
    """0 everywhere, also for NaN and Inf; the gradient that flows on is 0."""
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0)


def ones(x: Tensor) -> Tensor:
    """1 everywhere; the gradient that flows on is 0."""
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool), 1)


def scale(x: Tensor, factor: float) -> Tensor:
    """Each element times `factor`."""
    return x * factor


def clamp(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:  # noqa: A002 - as in torch.clamp
    """Each element brought between `min` and `max`."""
    return x.clamp(min, max)


def noise(x: Tensor, std: float, *, generator: torch.Generator | None = None) -> Tensor:
    """Normally distributed noise of the given standard deviation is added."""
    return x + std * torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)


def square(x: Tensor) -> Tensor:
    """Each element squared."""
    return x * x

"""The built-in operations of edits."""

from __future__ import annotations

import torch
from torch import Tensor


def zero(x: Tensor) -> Tensor:
    """Set every element to 0, also NaN and Inf; the gradient passed on is 0."""
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0)


def mean(x: Tensor, keep: int | None = None) -> Tensor:
    """Set every element to the mean over the batch and positions: over all dimensions but the one of channels.

    `keep` is that dimension: 1 in tensors of four and more dimensions, else the last.
    """
    kept = (keep if keep is not None else 1 if x.dim() > 3 else -1) % max(x.dim(), 1)
    others = [d for d in range(x.dim()) if d != kept]
    return x.mean(others, keepdim=True).expand_as(x).clone(memory_format=torch.preserve_format) if others else x.clone()


def ones(x: Tensor) -> Tensor:
    """Set every element to 1; the gradient passed on is 0."""
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool), 1)


def scale(x: Tensor, factor: float) -> Tensor:
    """Multiply each element by `factor`."""
    return x * factor


def clamp(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:  # noqa: A002 - as in torch.clamp
    """Limit each element to the range from `min` to `max`."""
    return x.clamp(min, max)


def noise(x: Tensor, std: float, *, generator: torch.Generator | None = None) -> Tensor:
    """Add normally distributed noise of the given standard deviation."""
    return x + std * torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)


def square(x: Tensor) -> Tensor:
    """Square each element."""
    return x * x

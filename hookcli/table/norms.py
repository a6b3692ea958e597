"""Norms of gradients, weights and updates over many parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable


def norm(parts: Iterable[float]) -> float:
    """The L2 norm of the concatenation of tensors with these norms; NaN if one of them is NaN, even if another is
    infinite.
    """
    parts = list(parts)
    return math.nan if any(map(math.isnan, parts)) else math.hypot(*parts)


def total(values: Iterable[float]) -> float:
    """The exact sum; NaN of opposite infinities, infinite beyond the largest float."""
    values = list(values)
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):  # fsum raises on these
        return sum(values)


def ratio(update: float | None, weight: float | None) -> float | None:
    """|dw|/|w|: infinite if weights of 0 changed, NaN if they did not."""
    if update is None or weight is None:
        return None
    if weight == 0:
        return math.nan if update == 0 or math.isnan(update) else math.inf
    return update / weight

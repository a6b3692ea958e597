"""Compares the outputs of two runs of a model, and makes the other batch of the second."""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from torch import Tensor

from hookcli.tensors import tree
from hookcli.tensors.chunks import dequantized, unnested

Output = list[Tensor | None]
"""The tensors that a model returned, as plain ones; None for one whose values can't be compared."""


def plain(x: Tensor) -> Tensor | None:
    """The tensor as a strided one, whatever its layout; None if PyTorch can't compare its values."""
    with suppress(RuntimeError, TypeError, ValueError), torch.DisableTorchFunctionSubclass():
        x = dequantized(x)
        x = x if x.layout is torch.strided else x.to_dense()
        if tree.is_plain(x):
            x.reshape(-1)[:1].to(torch.complex128)  # which some dtypes of a few bits don't know
            return x.as_subclass(Tensor)
    return None


def comparable(one: Output, other: Output) -> list[tuple[Tensor, Tensor]]:
    """The pairs of tensors whose values can be compared."""
    return [(a, b) for a, b in zip(one, other, strict=False) if a is not None and b is not None]


def common(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The part that both tensors have: beside longer items, an item may have more padding."""
    part = tuple(slice(min(sizes)) for sizes in zip(a.shape, b.shape, strict=False))
    return a[part], b[part]


def largest_difference(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """The largest difference within a pair, relative to the largest finite value of its first tensor."""
    worst = 0.0
    for a, b in pairs:
        a, b = (torch.view_as_real(x.to(torch.complex128).resolve_conj()) if x.is_complex() else x for x in (a, b))
        a, b = a.double(), b.double()
        if a.shape != b.shape:
            return math.inf
        same = (a == b) | (a.isnan() & b.isnan())
        difference = float((a - b).abs().masked_fill(same, 0).max()) if a.numel() else 0.0
        if math.isnan(difference):
            worst = math.nan
            continue
        scale = float(a.abs().masked_fill(~a.isfinite(), 0).max()) if a.numel() else 0.0
        worst = max(worst, difference / scale if scale else difference and math.inf)
    return worst


def unchanged(a: Tensor, b: Tensor) -> bool:
    """False if the tensors differ."""
    if tree.shape_of(a) != tree.shape_of(b) or a.device != b.device:
        return False
    x, y = (plain(unnested(z) if z.is_nested else z) for z in (a, b))
    return x is None or y is None or torch.equal(x, y)


def with_others(item: int, path: str, x: Tensor) -> Tensor:
    """The first item (0) or the last (-1) with copies of itself for the others, or zeros or ones if they were."""
    kept, rest = (x[:1], x[1:]) if item == 0 else (x[-1:], x[:-1])
    others = kept.expand_as(rest)
    if torch.equal(rest, others):
        others = torch.zeros_like(rest) if rest.any() else torch.ones_like(rest)
    return torch.cat([kept, others] if item == 0 else [others, kept])

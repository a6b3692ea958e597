"""Kinds of NaN and infinities in a tensor, and the rows that hold them; flags that stay on its device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hookcli.tensors import tree
from hookcli.tensors.chunks import on_cpu
from hookcli.tensors.torch_private import is_mapped


class Kinds(NamedTuple):
    """Flags of a tensor: it holds NaN, infinities of either sign; its largest value is 0; a row along its last
    dimension holds nothing but -inf.
    """

    nan: bool
    positive: bool
    negative: bool
    up_to_zero: bool
    hidden_row: bool

    @property
    def is_mask(self) -> bool:
        """True for zeros and -inf, as is added to attention scores."""
        return bool(self.negative and self.up_to_zero)

    @property
    def is_masked(self) -> bool:
        """True if all that is not finite is -inf."""
        return bool(self.negative and not (self.nan or self.positive))

    @property
    def hides_row(self) -> bool:
        """True for a mask with a row of which softmax makes NaN."""
        return bool(self.is_mask and self.hidden_row)

    def present(self) -> Iterator[str]:
        return (name for name, present in zip(self._fields[:3], self[:3], strict=True) if present)


def kinds_of(x: Tensor) -> Tensor | None:
    """A row of flags in the order of `Kinds`, as integers on the tensor's device; None where they can't be told."""
    x = x.detach()
    if not tree.is_plain(x) or not x.numel() or is_mapped(x):
        return None
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    if not x.is_floating_point():
        return None
    try:
        low, high = torch.aminmax(x)
        hidden = low.isneginf()
        if x.dim() and not (on_cpu(x) and not hidden):
            hidden = x.amax(-1).amin().isneginf()
    except RuntimeError:  # a dtype that has no such kernel
        return None
    flags = (high.isnan(), high.isposinf(), low.isneginf(), high == 0, hidden)
    return torch.stack([flag.to(torch.int64) for flag in flags]).reshape(1, -1)


def is_finite(x: Tensor) -> bool:
    """True for a tensor that holds neither NaN nor infinities, where that can be read at once."""
    kinds = kinds_of(x) if on_cpu(x) and x.is_floating_point() else None
    return kinds is None or not any(kinds[0, :3].tolist())


def bad_rows(x: Tensor) -> Tensor | None:
    """For each row along the first dimension whether it holds NaN or infinities, on the tensor's device; None without
    several rows, or where it can't be told.
    """
    if not tree.is_plain(x) or is_mapped(x) or not x.dim() or len(x) < 2 or not x.numel():
        return None
    try:
        finite: Tensor = x.detach().isfinite()
        return ~finite.reshape(len(x), -1).all(1)
    except RuntimeError:
        return None

"""Tensors as matrices in float32 pieces of bounded size, so that their copies take little memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

PIECE = 1 << 18
"""Elements of a piece, a multiple of every block's length; its float64 copy takes 2 MiB."""


def pieces(x: Tensor, leading: int) -> Iterator[tuple[Tensor, int, Tensor]]:
    """The matrix in float32 pieces of at most PIECE elements, with 0 for NaN, Inf and
    what float32 can't hold.

    Each piece comes with its first column, 0 unless a row is longer than a piece, and the largest magnitudes of its
    rows as [rows, 1].
    """
    for part in _split(x, leading):
        matrix = part.reshape(math.prod(part.shape[:leading]), -1) if part.numel() else part.reshape(0, 1)
        if matrix.shape[1] <= PIECE:
            piece = _finite(matrix)
            yield piece, 0, piece.abs().amax(1, keepdim=True)
            continue
        slices = [matrix[:, n : n + PIECE] for n in range(0, matrix.shape[1], PIECE)]
        peaks = torch.stack([_finite(one).abs().amax(1, keepdim=True) for one in slices]).amax(0)
        yield from ((_finite(one), n * PIECE, peaks) for n, one in enumerate(slices))


def _finite(x: Tensor) -> Tensor:
    return torch.nan_to_num(x.float(), nan=0.0, posinf=0.0, neginf=0.0)


def _split(x: Tensor, leading: int) -> Iterator[Tensor]:
    """Parts of whole rows, of at most PIECE elements each, or of one row."""
    longest = max(range(leading), key=x.size, default=0)
    if x.numel() <= PIECE or not leading or x.size(longest) == 1:
        yield x
        return
    for part in x.split(max(1, x.size(longest) * PIECE // x.numel()), dim=longest):
        yield from _split(part, leading)


def column_peaks(x: Iterable[tuple[Tensor, int, Tensor]], columns: int, device: torch.device) -> Tensor:
    """The largest magnitude of each column of a matrix that comes in pieces."""
    peaks = torch.zeros(columns, device=device)
    for piece, first, _ in x:
        here = peaks[first : first + piece.shape[1]]
        torch.maximum(here, piece.abs().amax(0), out=here)
    return peaks


def left_out(x: Tensor, leading: int) -> tuple[Tensor, Tensor]:
    """How many values are NaN or Inf, and how many finite ones of float64 are beyond float32."""
    nonfinite, beyond = torch.zeros(2, dtype=torch.int64, device=x.device)
    for part in _split(x, leading):
        finite = part.float().isfinite().count_nonzero()
        held = part.isfinite().count_nonzero() if part.dtype is torch.float64 else finite
        nonfinite += part.numel() - held
        beyond += held - finite
    return nonfinite, beyond

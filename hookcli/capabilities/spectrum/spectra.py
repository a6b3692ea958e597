"""Singular values of matrices whose rows come in parts, exactly: of the smaller side's Gram matrix, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hookcli.tensors.devices.launch import wide

WIDEST = 2048
"""The largest smaller side: its Gram matrix then takes 32 MiB, and its eigenvalues a second or two."""
_BLOCK = 1 << 22  # elements that are widened to float64 at once
FLOOR = 1e-6
"""Singular values below this share of the largest count as 0, as squares have lost them; 0.01 without float64 (MPS)."""

NOT_FINITE = "with NaN or Inf"


class Figures(NamedTuple):
    """Figures of singular values.

    `effective_rank` is the exponential of the entropy of the values divided by their sum (Roy and Vetterli 2007, The
    effective rank: a measure of effective dimensionality); `stable_rank` the squared Frobenius norm over the squared
    `spectral_norm`; `top_share` the share of the largest value in the sum. `token_spread` is the distance of the rows
    of each item from their mean, relative to their norm: the residual of Dong et al. 2021 (arXiv:2103.03404).
    """

    effective_rank: float
    stable_rank: float
    spectral_norm: float
    top_share: float
    token_spread: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A matrix of `count` rows, in parts that add up: with more rows than columns, only the Gram matrix of the columns.

    Holds at most as many numbers as that has, however many rows come.
    """

    count: int
    columns: int
    rows: tuple[Tensor, ...] = ()
    gram: Tensor | None = None
    means: Tensor | None = None
    """The squared norm of the matrix with the mean of its item in place of each row; None where rows are not tokens."""

    @classmethod
    def of(cls, x: Tensor, *, items: int = 0) -> Matrix:
        """The matrix x. Its rows belong to so many `items`, in turn; without items, x must not change later."""
        count, columns = x.shape
        means = None
        if items and count > items:
            means = x.reshape(items, -1, columns).mean(1, dtype=wide(x.device)).square().sum() * (count // items)
        if count > columns:
            return cls(count, columns, gram=_gram(x), means=means)
        size = x.dtype if x.dtype == torch.float64 else torch.float32
        return cls(count, columns, (x.to(size, copy=bool(items)),), means=means)

    def __add__(self, other: Matrix) -> Matrix:
        """The matrix with the rows of both."""
        count = self.count + other.count
        means = self.means + other.means if self.means is not None and other.means is not None else None
        if count <= self.columns:
            return Matrix(count, self.columns, (*self.rows, *other.rows), means=means)
        parts = [part.gram if part.gram is not None else _gram(torch.cat(part.rows)) for part in (self, other)]
        return Matrix(count, self.columns, gram=parts[0] + parts[1], means=means)

    @property
    def dimensions(self) -> int:
        """The largest possible rank."""
        return min(self.count, self.columns)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (*self.rows, *([] if self.gram is None else [self.gram])))

    def figures(self) -> Figures | str:
        """The figures, or the reason why there are none. Waits for an accelerator."""
        gram = _gram(torch.cat(self.rows).T) if self.gram is None else self.gram
        if not bool(gram.isfinite().all()):
            return NOT_FINITE
        squares = torch.linalg.eigvalsh(gram).flip(0)
        floor = FLOOR**2 if gram.dtype == torch.float64 else 1e-4
        values = squares.where(squares > floor * squares[0], 0.0).sqrt().cpu().double()
        if not float(values[0]):
            return "all zero"
        shares = values / values.sum()
        rank, stable = torch.special.entr(shares).sum().exp(), (values / values[0]).square().sum()
        spread = None if self.means is None else math.sqrt(max(1 - float(self.means) / float(gram.trace()), 0.0))
        return Figures(float(rank), float(stable), float(values[0]), float(shares[0]), spread)


def _gram(x: Tensor) -> Tensor:
    """The Gram matrix of the columns of x, block by block."""
    total = torch.zeros(x.shape[1], x.shape[1], dtype=wide(x.device), device=x.device)
    for block in x.split(max(_BLOCK // x.shape[1], 1)):
        part = block.to(total.dtype)
        total.addmm_(part.T, part)
    return total

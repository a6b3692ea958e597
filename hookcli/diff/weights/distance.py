"""The discrepancy of two stored tensors of one shape, and the rank of the change, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from hookcli.diff.tolerance import eps
from hookcli.table import raised
from hookcli.table.discrepancy import Discrepancy
from hookcli.tensors.files.codings import Floats, Values, values
from hookcli.tensors.files.spectrum import WIDEST, LowRank, low_rank
from hookcli.tensors.files.stored import BLOCK, StoredTensor

_MERGED = 256  # blocks whose discrepancies wait to be merged
_NARROWEST = 8  # rows or columns of a matrix whose rank is worth a word
_LOW = 4  # a rank is low up to this part of the smaller dimension


def same_bytes(a: StoredTensor, b: StoredTensor) -> bool:
    """True if both are coded alike and have the same bytes."""
    return a.coding == b.coding and all(
        np.array_equal(x.view("u1"), y.view("u1")) for x, y in zip(a.blocks(BLOCK), b.blocks(BLOCK), strict=True)
    )


def distance(a: StoredTensor, b: StoredTensor, tell: Callable[[int], object]) -> Discrepancy:
    """The discrepancy of two tensors of one shape; complex values count as pairs of real ones.

    If one tensor is real, its imaginary parts are 0.
    """
    parts: list[Discrepancy] = []
    paired = a.is_complex or b.is_complex
    numbers = b.numel * (2 if paired else 1)
    for x, y in zip(_numbers(a, paired), _numbers(b, paired), strict=True):
        parts.append(_apart(x, y))
        tell(round(y.size / numbers * b.nbytes))
        if len(parts) == _MERGED:
            parts = [Discrepancy.merge(parts)]
    return Discrepancy.merge(parts)


def change_of_low_rank(a: StoredTensor, b: StoredTensor, found: Discrepancy) -> LowRank | None:
    """The rank of ``B - A``, if it is low and more than rounding to the dtypes explains; else None."""
    smaller = min(a.shape[0], a.columns) if a.is_matrix else 0
    is_complex = a.is_complex or b.is_complex
    if smaller < _NARROWEST or a.columns > WIDEST or not 0 < found.max_abs < math.inf or found.nonfinite or is_complex:
        return None
    unit = found.max_abs  # in whose units float32 suffices
    # Rounding to a spacing of eps has a variance of eps**2 / 12 of the element's square at most. B was rounded after
    # the change; if the dtypes differ, one side was before it, too.
    times = 1 if a.dtype == b.dtype else 2
    rounding = times * (eps(a.dtype, b.dtype) * max(found.a_l2, found.b_l2) / unit) ** 2 / 12

    def rows() -> Iterator[Floats]:
        return ((y - x) / unit for x, y in zip(a.rows(), b.rows(), strict=True))

    return low_rank(rows, a.columns, (found.error_l2 / unit) ** 2, rounding, smaller // _LOW)


def _numbers(tensor: StoredTensor, paired: bool) -> Iterator[Values]:
    """The elements as float64; `paired`: as pairs of a real and an imaginary part."""
    for block in tensor.blocks(BLOCK):
        if block.dtype.kind == "c":
            yield block.view(f"f{block.dtype.itemsize // 2}").astype(np.float64)
        else:
            real = values(tensor.coding, block)
            yield np.stack((real, np.zeros_like(real)), axis=1).ravel() if paired else real


def _apart(a: Values, b: Values) -> Discrepancy:
    """The discrepancy of two blocks, over the elements that are finite in both."""
    n, nonfinite = a.size, 0
    with np.errstate(invalid="ignore", over="ignore"):
        error = b - a
        total = error.sum()
    if not math.isfinite(total):
        both = np.isfinite(a) & np.isfinite(b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        nonfinite = int(np.count_nonzero(~both & ~same))
        a, b, error = a[both], b[both], error[both]
    if not error.size:
        return Discrepancy(numel=n, nonfinite=nonfinite)
    size = np.abs(error)
    norms = (_norm(error), _norm(a), _norm(b))
    return Discrepancy(n, float(size.max()), float(size.sum()) / n, *norms, nonfinite, finite=error.size)


def _norm(x: Values) -> float:
    """The l2 norm; in units of the largest magnitude where squares leave float64's range."""
    with np.errstate(over="ignore", under="ignore"):
        squares = float(np.dot(x, x))
    if 1e-260 < squares < 1e300 or not x.any():
        return math.sqrt(squares)
    exponent = math.frexp(float(np.abs(x).max()))[1]
    scaled = raised(x, -exponent)
    return float(raised(math.sqrt(float(np.dot(scaled, scaled))), exponent))

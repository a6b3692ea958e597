"""Statistics of tensors in files, and spectra of matrices, with NumPy: importing torch takes seconds and half a GiB.

Statistics are defined as in `hookcli.tensors.stats`, with histograms: exact, and merged exactly from block to block.
Codings of one or two bytes have few codes, which are counted; the counts give the tensor's statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hookcli.table import TensorStats, raised
from hookcli.table.histogram import FORMATS, LINEAR, Histogram
from hookcli.tensors.files.stored import BLOCK, CODINGS, Floats, StoredTensor, Values, table

Counts = NDArray[np.int64]
Told = Callable[[int], object]
"""Callback for progress: the number of bytes just read."""
_FARTHEST = 450  # exponents beyond which squares leave float64's range
_MERGED = 256  # blocks whose statistics wait to be merged


def measured(tensor: StoredTensor, tell: Told = lambda nbytes: None) -> TensorStats:
    """The statistics of a tensor whose values can be read, with its histogram."""
    size = tensor.nbytes / max(tensor.numel, 1)
    if CODINGS[tensor.coding].table:
        of_codes = table(tensor.coding)
        counts = np.zeros(len(of_codes), np.int64)
        for block in tensor.blocks(BLOCK):
            counts += np.bincount(block, minlength=len(of_codes))
            tell(round(block.size * size))
        return _of_numbers(of_codes[counts > 0], counts[counts > 0])
    parts: list[TensorStats] = []
    for values in tensor.values():
        parts.append(_of_numbers(values))
        tell(round(values.size * size))
        if len(parts) == _MERGED:
            parts = [TensorStats.merge(parts)]
    return TensorStats.merge(parts)


def _of_numbers(values: Values, counts: Counts | None = None) -> TensorStats:
    """The statistics of numbers, each of which is there once, or as often as `counts` says; in two passes."""
    numel = values.size if counts is None else int(counts.sum())
    nan = inf = 0
    with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs, or a sum beyond float64
        total = values.sum()
    if not math.isfinite(total):
        is_nan, is_inf = np.isnan(values), np.isinf(values)
        nan, inf = _number(is_nan, counts), _number(is_inf, counts)
        finite = ~(is_nan | is_inf)
        values, counts = values[finite], counts if counts is None else counts[finite]
    n = numel - nan - inf
    if n == 0:
        return TensorStats(numel=numel, nan=nan, inf=inf)
    low, high = float(values.min()), float(values.max())
    # In units of the largest magnitude where squares would leave float64's range. A power of two changes no bit.
    exponent = math.frexp(max(-low, high))[1]
    exponent = exponent if abs(exponent) > _FARTHEST else 0
    units = raised(values, -exponent) if exponent else values
    least = raised(low, -exponent)
    mean = least + float((units - least).sum() if counts is None else np.dot(units - least, counts)) / n
    hist = _histogram(values, counts)
    return TensorStats(
        numel=numel,
        mean=raised(mean, exponent),
        std=raised(math.sqrt(_squares(units - mean, counts) / (n - 1)), exponent) if n > 1 else math.nan,
        min=low,
        max=high,
        l2=raised(math.sqrt(_squares(units, counts)), exponent),
        zeros=n - sum(hist.negative) - sum(hist.positive),
        nan=nan,
        inf=inf,
        hist=hist,
    )


def _number(chosen: NDArray[np.bool_], counts: Counts | None) -> int:
    return int(np.count_nonzero(chosen) if counts is None else counts[chosen].sum())


def _squares(values: Values, counts: Counts | None) -> float:
    return float(np.dot(values, values if counts is None else values * counts))


def _histogram(values: Values, counts: Counts | None) -> Histogram:
    sizes = np.abs(values)
    most = float(sizes.max())
    overflows = [
        _number(sizes > form.most if form.beyond else sizes >= form.most, counts) if most >= form.most else 0
        for form in FORMATS
    ]
    fields = (values.view(np.int64) >> 52) & 4095  # the sign and 11 bits of exponent
    bins = np.bincount(fields, counts, minlength=4096)
    subnormal = (fields & 2047 == 0) & (values != 0)
    negative, positive = (
        {k - 1023: int(side[k]) for k in np.flatnonzero(side).tolist() if k} for side in (bins[2048:], bins[:2048])
    )
    for place in np.flatnonzero(subnormal).tolist():
        side = negative if values[place] < 0 else positive
        power = math.frexp(sizes[place])[1] - 1
        side[power] = side.get(power, 0) + (1 if counts is None else int(counts[place]))
    powers = Histogram.of(negative, positive, overflows)
    solid = sizes > 0
    places = np.ldexp(sizes[solid], -powers.linear_power).astype(np.int64) + LINEAR * (values[solid] > 0)
    linear = np.bincount(places, None if counts is None else counts[solid], 2 * LINEAR).astype(np.int64).tolist()
    return powers.with_linear(linear[:LINEAR], linear[LINEAR:])


Rows = Callable[[], Iterable[Floats]]
"""The blocks of a matrix, each of some whole rows; they are read anew at each call."""
WIDEST = 1 << 18
"""Columns that a matrix may have: for each, `spectrum` needs 61 numbers in memory."""
_STEPS = 60
_AFTER = 5  # steps after the first estimate, which may be of the second value where the start hardly has the first
_EXACT = 256  # the smaller side of a matrix up to which all its singular values are computed
_HELD = 1 << 26  # bytes of a matrix that is kept in memory
_TINY, _HUGE = 1e-12, 1e12
_NOTHING = 1e-12  # of the largest eigenvalue: a remainder as small is rounding, and holds no further direction
_PRECISE = 1e-3  # of the squared singular value: its distance from the next estimate at most
_SKETCH = 72
MOST_RANK = 64
"""The highest rank of a change that is found."""
_CLEAR = 10.0  # times the energy of rounding: a sketch's last direction that has more is not rounding
_REST = 1e-6  # share of the energy that the arithmetic of float32 leaves beside a change of low rank


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The largest singular value of a matrix, and its stable rank: the squared Frobenius norm over its square.

    `converged`: a singular value lies within 0.05 % of `norm`; otherwise `norm` is only a lower bound.
    """

    norm: float
    stable_rank: float
    converged: bool


def spectrum(rows: Rows, columns: int) -> Spectrum | None:
    """The spectrum of a matrix of so many columns; None if it has elements that are not finite.

    Of a matrix with a side of up to 256 exactly, from ``A'A`` or ``AA'``; of others by the Lanczos iteration for
    ``A'A`` with full reorthogonalization (Golub and Van Loan, Matrix Computations, section 10.1), which ends five steps
    after the residual of the largest eigenvalue bounds its error. A small matrix is read once and kept, a large one is
    read again for each step.
    """
    parts: list[tuple[float, float]] = []  # the largest magnitude of a block, and its energy in units of that squared
    held: list[Floats] = []  # all blocks, if they are few
    size = 0
    for block in rows():
        most = float(np.abs(block).max())
        values = block.astype(np.float64).ravel() / (most if 0 < most < math.inf else 1.0)
        parts.append((most, float(np.dot(values, values))))
        size += block.nbytes
        held = [*held, block] if size <= _HELD else []
    peak = float(np.max([most for most, _ in parts]))  # NaN if an element is
    if not math.isfinite(peak) or peak == 0.0:
        return Spectrum(0.0, math.nan, True) if peak == 0.0 else None
    unit = 1.0 if _TINY < peak < _HUGE else peak  # in which products neither overflow nor vanish
    energy = math.fsum(total * (most / peak) ** 2 for most, total in parts) * (peak / unit) ** 2

    def blocks() -> Iterator[Floats]:
        return (block if unit == 1.0 else block.astype(np.float64) / unit for block in held or rows())

    count = sum(map(len, held)) if held else _EXACT + 1
    if min(count, columns) <= _EXACT:
        largest, converged = float(np.linalg.eigvalsh(_gram(blocks(), columns, count))[-1]), True
    else:
        largest, converged = _lanczos(blocks, columns)
    return Spectrum(unit * math.sqrt(largest), energy / largest, converged)


def _gram(blocks: Iterable[Floats], columns: int, count: int) -> Values:
    """``A'A`` of a matrix of `count` rows, or where these are fewer than its columns ``AA'``."""
    if count < columns:
        rows: Values = np.concatenate([block.astype(np.float64) for block in blocks])
        product: Values = rows @ rows.T
        return product
    gram = np.zeros((columns, columns))
    for block in blocks:
        wide = block.astype(np.float64)
        gram += wide.T @ wide
    return gram


def _lanczos(blocks: Callable[[], Iterable[Floats]], columns: int) -> tuple[float, bool]:
    """The largest eigenvalue of ``A'A``, and whether an eigenvalue is known to be as near as _PRECISE."""
    basis = np.empty((min(_STEPS, columns) + 1, columns))
    start = np.random.default_rng(0).standard_normal(columns)
    basis[0] = start / np.linalg.norm(start)
    diagonal: list[float] = []
    beside: list[float] = []
    last = len(basis) - 2
    for step in range(len(basis) - 1):
        product = np.zeros_like(basis[step])
        for block in blocks():
            product += (block @ basis[step].astype(block.dtype)) @ block
        diagonal.append(float(basis[step] @ product))
        for _ in range(2):  # twice is enough
            product -= basis[: step + 1].T @ (basis[: step + 1] @ product)
        beside.append(float(np.linalg.norm(product)))
        matrix = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
        eigenvalues, vectors = np.linalg.eigh(matrix)
        largest, residual = float(eigenvalues[-1]), beside[-1] * abs(float(vectors[-1, -1]))
        if residual <= _PRECISE * largest:
            last = min(last, step + _AFTER)
        if step >= last or beside[-1] <= _NOTHING * largest:
            break
        basis[step + 1] = product / beside[-1]
    return largest, residual <= _PRECISE * largest


@dataclass(frozen=True, slots=True)
class LowRank:
    """The number of singular values of a change that are more than rounding, and their share of its energy."""

    rank: int
    share: float


def low_rank(rows: Rows, columns: int, energy: float, rounding: float, most: int) -> LowRank | None:
    """The rank of a matrix of this `energy` (squared Frobenius norm), if it is at most `most`; None if it is higher.

    The elements are near 1, so that float32 can sum them. `rounding` is the energy that rounding may have added, which
    has full rank. By a randomized sketch of the rows' space (Halko, Martinsson and Tropp, 2011, algorithm 4.1), which
    holds all of it if the rank is low; in two passes, or one where the sketch shows that the rank is high.
    """
    allowed = max(_REST * energy, rounding)
    if allowed >= energy / 2:
        return None  # rounding is most of it
    directions = np.random.default_rng(0)
    sketch = np.zeros((_SKETCH, columns))
    for block in rows():
        sketch += directions.standard_normal((_SKETCH, len(block)), np.float32) @ block.astype(np.float32)
    _, values, basis = np.linalg.svd(sketch, full_matrices=False)
    if len(values) == _SKETCH and values[-1] ** 2 > _CLEAR * allowed:
        return None
    narrow = basis.T.astype(np.float32)
    gram = np.zeros((len(basis),) * 2)
    for block in rows():
        projected = (block.astype(np.float32) @ narrow).astype(np.float64)
        gram += projected.T @ projected
    kept = np.cumsum(np.linalg.eigvalsh(gram)[::-1])
    enough = np.flatnonzero(energy - kept <= allowed)
    if not len(enough) or enough[0] + 1 > min(most, MOST_RANK):
        return None
    return LowRank(int(enough[0]) + 1, min(float(kept[enough[0]] / energy), 1.0))

"""Merges the statistics of many tensors at once, each of which several processes hold parts of; with numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hookcli.table.column import Merge
from hookcli.table.stats import COUNTS, EXACT, FIGURES, RULES, STATS_KEYS, TensorStats

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


def merge_parts(figures: Array, held: Mask) -> list[TensorStats]:
    """The statistics of each tensor, exactly, from its parts' statistics: `TensorStats.merge` for many tensors at once.

    `figures` are by part, tensor and statistic; `held` tells by part and tensor which parts there are.
    """
    columns = {key: figures[:, :, place] for place, key in enumerate(STATS_KEYS)}
    counts = {key: np.where(held, columns[key], 0).astype(np.int64) for key in COUNTS}
    sizes = counts["numel"] - counts["nan"] - counts["inf"]
    statistics: dict[str, Any] = {key: count.sum(0) for key, count in counts.items()}
    solid = sizes > 0
    with np.errstate(all="ignore"):  # infinities and NaN are figures like others
        statistics |= {key: _RULES[rule](columns[key], solid) for key, rule in RULES.items()}
        statistics["mean"], statistics["std"] = _spread(columns, sizes, solid)
    empty = ~solid.any(0)
    for key in STATS_KEYS:
        if key not in counts:
            statistics[key] = np.where(empty, math.nan, statistics[key])
    lists = (statistics[key].tolist() for key in STATS_KEYS)
    return [TensorStats.from_floats(each) for each in zip(*lists, strict=True)]


def parts_agree(figures: Array, held: Mask, tolerance: float) -> Mask:
    """True by tensor if all its parts have the same statistics, but for a part `tolerance` of their magnitude."""
    columns = {key: figures[:, :, place] for place, key in enumerate(STATS_KEYS)}
    first = {key: np.take_along_axis(each, held.argmax(0)[None], 0) for key, each in columns.items()}
    with np.errstate(all="ignore"):
        magnitude = np.fmax(abs(columns["min"]), abs(columns["max"]))
        magnitude = np.fmax(magnitude, np.fmax(abs(first["min"]), abs(first["max"])))
        agree = ~held
        agree |= np.logical_and.reduce([columns[key] == first[key] for key in EXACT])
        for key in _APART:
            own, other = columns[key], first[key]
            equal = (own == other) | (np.isnan(own) & np.isnan(other)) | (abs(own - other) <= tolerance * magnitude)
            agree &= equal | ~held
    return np.logical_and.reduce(agree, 0)  # type: ignore[no-any-return]


_APART = tuple(key for key in FIGURES if key != "l2")  # which follows from the others


def _spread(columns: Mapping[str, Array], sizes: NDArray[np.int64], solid: Mask) -> tuple[Array, Array]:
    """Mean and standard deviation, computed as for one tensor (see `report.stats`)."""
    n = sizes.sum(0)
    peak = np.maximum(-_least(columns["min"], solid), _most(columns["max"], solid))
    exponent = np.frexp(np.where(np.isfinite(peak), peak, 1.0))[1]
    means = np.where(solid, np.ldexp(columns["mean"], -exponent), 0.0)
    first = np.take_along_axis(means, solid.argmax(0)[None], 0)[0]
    mean = first + _total(np.where(solid, means - first, 0.0) * sizes) / n
    stds = np.where(sizes > 1, np.ldexp(columns["std"], -exponent), 0.0)
    squares = np.concatenate([stds**2 * np.maximum(sizes - 1, 0), sizes * np.where(solid, means - mean, 0.0) ** 2])
    std = np.where(n > 1, np.sqrt(_total(squares) / (n - 1)), math.nan)
    return np.ldexp(mean, exponent), np.ldexp(std, exponent)


def _total(terms: Array) -> Array:
    """The sum over parts with the rounding error of every addition, as `math.fsum` has it (Knuth's TwoSum)."""
    total, error = np.zeros(terms.shape[1:]), np.zeros(terms.shape[1:])
    for term in terms:
        after = total + term
        added = after - total
        error += (total - (after - added)) + (term - added)
        total = after
    return np.where(np.isfinite(error), total + error, total)


def _least(values: Array, solid: Mask) -> Array:
    least: Array = np.where(solid, values, math.inf).min(0, initial=math.inf)
    return least


def _most(values: Array, solid: Mask) -> Array:
    most: Array = np.where(solid, values, -math.inf).max(0, initial=-math.inf)
    return most


def _norm(values: Array, solid: Mask) -> Array:
    """The norm of the concatenation; in units of the largest part, so that squares neither overflow nor vanish."""
    values = np.where(solid, values, 0.0)
    exponent = np.frexp(values.max(0, initial=0.0))[1]
    norm: Array = np.ldexp(np.sqrt(_total(np.ldexp(values, -exponent) ** 2)), exponent)
    return norm


_RULES = {Merge.LEAST: _least, Merge.MOST: _most, Merge.NORM: _norm}

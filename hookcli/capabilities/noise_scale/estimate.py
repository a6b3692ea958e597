"""The simple noise scale from norms of gradients, its standard error and its interval. Free of torch.

McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv:1812.06162), appendix A.1: with G the
gradient of the loss over all data, and Σ the covariance of the gradient of one sample, B_simple = tr Σ / |G|².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

FEWEST = 8
"""Micro-batches: with fewer, the standard error says little of itself."""
_CONFIDENT = 1.959964  # standard deviations of a normal distribution that 95 % lie within


@dataclass(frozen=True)
class Norms:
    """Figures of the gradients of n micro-batches of `size` samples each.

    `squares`: |g_i|². `products`: g_i · ḡ, with ḡ their mean. `square_of_mean`: |ḡ|².
    """

    size: int
    squares: Sequence[float]
    products: Sequence[float]
    square_of_mean: float

    def moments(self) -> tuple[float, float]:
        """Unbiased estimates of |G|² and tr Σ, as in appendix A.1: from batches of `size` and of all samples."""
        return _moments(self.size, len(self.squares), sum(self.squares), self.square_of_mean)

    def without(self, index: int) -> tuple[float, float]:
        """The same estimates without one micro-batch."""
        n, square = len(self.squares), self.squares[index]
        left = (n * n * self.square_of_mean - 2 * n * self.products[index] + square) / (n - 1) ** 2
        return _moments(self.size, n - 1, sum(self.squares) - square, left)


def _moments(size: int, number: int, squares: float, square_of_mean: float) -> tuple[float, float]:
    variance = max(size * (squares - number * square_of_mean) / (number - 1), 0.0)
    return square_of_mean - variance / (size * number), variance


@dataclass(frozen=True)
class NoiseScale:
    """An estimate of the noise scale in samples.

    `value` and its standard `error` are None where `high` is: the gradient can't be told from noise. `low` and `high`
    are the ends of an interval of 95 %; both are None where errors were not measured.
    """

    grad_sq: float
    variance: float
    value: float | None
    error: float | None
    low: float | None
    high: float | None


def without_error(norms: Norms) -> NoiseScale:
    """The noise scale from the first pass alone, whose error is not known."""
    grad_sq, variance = norms.moments()
    return NoiseScale(grad_sq, variance, variance / grad_sq if grad_sq > 0 else None, None, None, None)


def estimate(norms: Norms) -> NoiseScale:
    """The noise scale, with the jackknife's standard error (Efron 1982), and the interval of a ratio.

    The interval is Fieller's (1954) from the jackknife's covariance of both moments: it has no upper end where |G|² may
    be 0.
    """
    grad_sq, variance = norms.moments()
    number = len(norms.squares)
    parts = [norms.without(index) for index in range(number)]
    spread = Jackknife(parts)
    low, high = interval(grad_sq, variance, spread, quantile(number - 1))
    if high is None:
        return NoiseScale(grad_sq, variance, None, None, low, None)
    ratios = [v / g for g, v in parts if g > 0]
    error = math.sqrt(Jackknife([(r, r) for r in ratios]).of(0, 0)) if len(ratios) == number else None
    return NoiseScale(grad_sq, variance, variance / grad_sq, error, low, high)


class Jackknife:
    """The jackknife's covariances of two estimates, from pairs of them that each leave one part out."""

    def __init__(self, pairs: Sequence[tuple[float, float]]) -> None:
        means = [fmean(column) for column in zip(*pairs, strict=True)]
        self._apart = [[x - mean for x, mean in zip(pair, means, strict=True)] for pair in pairs]

    def of(self, a: int, b: int) -> float:
        n = len(self._apart)
        return (n - 1) / n * sum(pair[a] * pair[b] for pair in self._apart)


def quantile(freedom: int) -> float:
    """Student's t that 95 % lie within, by its expansion (Abramowitz and Stegun 26.7.5): 1 % off for 7 or more."""
    z = _CONFIDENT
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interval(grad_sq: float, variance: float, spread: Jackknife, t: float) -> tuple[float, float | None]:
    """The ends of the interval of variance / grad_sq: all x with (variance - x grad_sq)² <= t² Var; None: no end."""
    a = grad_sq**2 - t**2 * spread.of(0, 0)
    half = grad_sq * variance - t**2 * spread.of(0, 1)
    c = variance**2 - t**2 * spread.of(1, 1)
    root = math.sqrt(max(half**2 - a * c, 0.0))
    if a > 0 and grad_sq > 0:
        return max((half - root) / a, 0.0), (half + root) / a
    if a < 0 < c:
        return max((half - root) / a, (half + root) / a), None
    return 0.0, None

"""The estimator from norms alone: against the vectors themselves, a scan of the interval, and a known answer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hookcli.capabilities.noise_scale.estimate import Jackknife, NoiseScale, Norms, estimate, quantile
from hookcli.capabilities.noise_scale.verdict import verdict


def norms(vectors: Tensor, size: int = 1) -> Norms:
    """The norms of gradients, a row for each micro-batch."""
    mean = vectors.mean(0)
    return Norms(size, vectors.square().sum(1).tolist(), (vectors @ mean).tolist(), float(mean @ mean))


def by_vectors(vectors: Tensor, size: int) -> tuple[float, float]:
    """|G|² and tr Σ by appendix A.1 of the paper, with B_small = size and B_big all samples."""
    small, big = size, size * len(vectors)
    of_small, of_big = vectors.square().sum(1).mean(), vectors.mean(0).square().sum()
    grad_sq = (big * of_big - small * of_small) / (big - small)
    return float(grad_sq), float((of_small - of_big) / (1 / small - 1 / big))


def drawn(number: int, seed: int = 0, dims: int = 10, scale: float = 4.0) -> Tensor:
    """Gradients of single samples whose noise scale is `scale`: |G|² = dims / scale, and tr Σ = dims."""
    generator = torch.Generator().manual_seed(seed)
    return scale**-0.5 + torch.randn(number, dims, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 4])
def test_the_estimates_and_their_jackknife_are_those_of_the_vectors(size: int) -> None:
    vectors = drawn(20)
    found = estimate(norms(vectors, size))
    grad_sq, variance = by_vectors(vectors, size)
    assert (found.grad_sq, found.variance) == pytest.approx((grad_sq, variance), rel=1e-12)
    assert found.value == pytest.approx(variance / grad_sq, rel=1e-12)
    left = [by_vectors(torch.cat([vectors[:n], vectors[n + 1 :]]), size) for n in range(20)]
    for n in range(20):
        assert norms(vectors, size).without(n) == pytest.approx(left[n], rel=1e-9)
    ratios = torch.tensor([v / g for g, v in left], dtype=torch.float64)
    error = (19 / 20 * (ratios - ratios.mean()).square().sum()).sqrt()
    assert found.error == pytest.approx(float(error), rel=1e-9)


def test_the_interval_is_every_ratio_that_the_moments_allow() -> None:
    """All x whose variance - x |G|² is within t standard errors of 0, by a scan."""
    for scale, bounded in ((4.0, True), (1e6, False)):
        vectors = drawn(40, scale=scale)
        found, of = estimate(norms(vectors)), norms(vectors)
        spread, t = Jackknife([of.without(n) for n in range(40)]), 2.0227  # of 39 degrees of freedom
        inside = []
        for step in range(6000):
            x = 0.1 * 1.002**step
            error = spread.of(1, 1) - 2 * x * spread.of(0, 1) + x * x * spread.of(0, 0)
            if abs(found.variance - x * found.grad_sq) <= t * math.sqrt(error):
                inside.append(x)
        assert found.low == pytest.approx(inside[0], rel=5e-3)
        assert (found.high is not None) == bounded and (found.value is not None) == bounded
        assert inside[-1] == pytest.approx(found.high, rel=5e-3) if bounded else inside[-1] > 1e4


def test_quantiles_are_those_of_published_tables() -> None:
    """Student's t at 97.5 %, as in any table."""
    for freedom, expected in ((7, 2.3646), (15, 2.1314), (31, 2.0395), (63, 1.9983)):
        assert quantile(freedom) == pytest.approx(expected, rel=4e-3)


@pytest.mark.sweep
def test_the_interval_holds_the_truth_in_95_of_100_samples() -> None:
    for number, dims in ((16, 10), (64, 100)):
        held = 0
        for seed in range(400):
            found = estimate(norms(drawn(number, seed, dims)))
            held += found.low <= 4 and (found.high is None or found.high >= 4)
        assert 0.92 * 400 <= held <= 0.985 * 400


def test_gradients_that_are_all_the_same_have_no_noise() -> None:
    found = estimate(norms(torch.ones(8, 3, dtype=torch.float64)))
    assert (found.variance, found.value, found.error) == (0, 0, 0)
    assert "all micro-batches have the same gradient" in verdict(found, 8, 8)


def test_the_first_line_says_what_can_be_told() -> None:
    """B_simple = 4: at a batch of 64, 1 + 64 / 4 = 17 times the fewest samples; at a batch of 1, 5 times the steps."""
    clear = estimate(norms(drawn(2000)))
    assert clear.value == pytest.approx(4, rel=0.1)
    assert "a smaller batch than 64 saves samples; at 64, training takes about 1" in verdict(clear, 2000, 64)
    assert "a larger batch than 1 saves steps; at 1, training takes about 5" in verdict(clear, 2000, 1)
    assert "a batch of 4 is close to that" in verdict(clear, 2000, 4)
    scale = estimate(norms(drawn(64, scale=1e9)))
    hidden = verdict(scale, 64, 2)
    assert hidden.startswith("The noise scale is above ") and "64 samples don't tell how far above" in hidden
    assert "a larger batch than 2 saves steps" in hidden and "saves" not in verdict(scale, 64, 64)
    wide = verdict(NoiseScale(1.0, 20.0, 20.0, 9.0, 5.0, 123.4), 16, 4)
    assert wide.startswith("The noise scale is 5 to 123 at 95%, too wide to choose by")
    one = torch.zeros(8, 2, dtype=torch.float64)
    one[0, 0] = 1
    assert verdict(estimate(norms(one)), 8, 8).startswith("The noise scale can't be told from 8 samples")
    none = verdict(estimate(norms(torch.zeros(8, 2, dtype=torch.float64))), 8, 8)
    assert none == "The noise scale can't be told: all gradients of 8 samples are 0"

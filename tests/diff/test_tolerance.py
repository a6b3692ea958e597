"""What a tolerance allows for each statistic follows from what it allows for the tensor."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hookcli.diff.tolerance import Tolerance, allowance, eps, excess
from hookcli.table import TensorStats
from hookcli.tensors.stats import stats


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_epsilons_are_pytorchs(dtype: torch.dtype) -> None:
    assert eps(str(dtype).removeprefix("torch.")) == torch.finfo(dtype).eps


def test_defaults() -> None:
    assert Tolerance().limits("float32", "bfloat16") == (math.sqrt(torch.finfo(torch.bfloat16).eps), 0.0)
    assert Tolerance().limits("int64") == (0.0, 0.0)
    half = math.sqrt(torch.finfo(torch.float32).eps)
    assert Tolerance().limits("float32", scale=2.0) == (10 * half, 0.2 * half)
    assert Tolerance(1e-2).limits("float32", scale=2.0) == (1e-2, 0.0)
    assert Tolerance(None, 1e-3).limits("float32") == (half, 1e-3)


@given(
    n=st.integers(2, 300),
    mean=st.sampled_from([0.0, 1.0, -50.0]),
    rtol=st.sampled_from([1e-1, 1e-3]),
    how=st.sampled_from(["random", "one element", "shift", "scale"]),
    seed=st.integers(0, 10_000),
)
def test_tensors_within_tolerance_have_statistics_within_it(
    n: int, mean: float, rtol: float, how: str, seed: int
) -> None:
    """mean, std and l2 of any b with rms(b - a) <= rtol * rms(a)."""
    generator = torch.Generator().manual_seed(seed)
    a = mean + torch.randn(n, generator=generator, dtype=torch.float64)
    error = _error(how, a, generator)
    b = a + error / error.norm() * a.norm() * rtol * 0.999
    for name in ("mean", "std", "l2"):
        assert excess(name, stats(a), stats(b), rtol, 0.0) <= 1, name


def _error(how: str, a: Tensor, generator: torch.Generator) -> Tensor:
    if how == "one element":
        error = torch.zeros_like(a)
        error[0] = 1
        return error
    return {
        "random": torch.randn(a.shape, generator=generator, dtype=a.dtype),
        "shift": torch.ones_like(a),
        "scale": a,
    }[how]


def test_a_mean_near_zero_is_held_against_the_spread() -> None:
    a = TensorStats(10_000, 1e-9, 1.0, -4.0, 4.0, 100.0)
    b = TensorStats(10_000, 5e-5, 1.0, -4.0, 4.0, 100.0)
    assert excess("mean", a, b, 1e-4, 0.0) == pytest.approx(0.5, rel=1e-3)  # |mean| itself moved 50,000 times


def test_counts_of_what_is_not_finite_are_exact_and_zeros_are_a_share() -> None:
    a, b = (
        TensorStats(1000, 0.0, 1.0, -1.0, 1.0, 1.0, zeros=100),
        TensorStats(1000, 0.0, 1.0, -1.0, 1.0, 1.0, zeros=105, nan=1),
    )
    assert excess("nan", a, b, 1.0, 1.0) == math.inf
    assert excess("zeros", a, b, 0.01, 0.0) == pytest.approx(0.5)
    assert allowance("numel", a, 1.0, 1.0) == 0


def test_what_neither_has_agrees_and_what_one_has_does_not() -> None:
    nothing, some = TensorStats(3, nan=3), TensorStats(3, 1.0, 0.0, 1.0, 1.0, math.sqrt(3))
    assert excess("mean", nothing, nothing, 1e-3, 0.0) == 0
    assert excess("mean", nothing, some, 1e-3, 0.0) == math.inf
    assert excess("max", some, TensorStats(3, 1.0, 0.0, 1.0, math.inf, 1.0), 1e-3, 0.0) == math.inf

"""Statistics at the ends of the ranges, without a finite element, and of views."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import examples
from support import assert_stats, float64_stats
from torch import Tensor

from hookcli.table import TensorStats
from hookcli.tensors import chunks
from hookcli.tensors.stats import measure, resolve, stats

# At the ends of the ranges.

ENDS = [1e200, 1e-200, 1e307, 1e-307, 5e-324, 1.7e308]


@pytest.mark.parametrize("accelerator", [False, True])
@pytest.mark.parametrize("scale", ENDS)
def test_float64_whose_squares_leave_its_range(
    scale: float, accelerator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against fractions, which have no range."""
    monkeypatch.setattr(chunks, "on_cpu", lambda values: not accelerator)
    values = [1.0 * scale, -0.5 * scale, 0.0, 0.25 * scale]
    found = stats(torch.tensor(values, dtype=torch.float64))
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / 4
    spread = sum((value - mean) ** 2 for value in exact) / 3
    slack = max(1e-12 * scale, 5e-324)
    assert found.mean == pytest.approx(float(mean), abs=slack)
    assert found.std == pytest.approx(_root(spread), abs=slack)
    assert found.l2 == pytest.approx(_root(sum(value**2 for value in exact)), abs=slack)
    assert (found.min, found.max, found.zeros) == (-0.5 * scale, scale, values.count(0.0))


def _root(square: Fraction | int) -> float:
    """The square root of a fraction, also where that of its float would overflow or vanish."""
    root = Fraction(math.isqrt(int(Fraction(square) * 2**4400)), 2**2200)
    return float(root) if root < 2**1024 else math.inf


@pytest.mark.sweep
@pytest.mark.parametrize("accelerator", [False, True])
@given(
    values=st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=30),
    exponent=st.integers(-1000, 1000),
    cut=st.integers(0, 30),
)
@examples(50)
def test_a_power_of_two_scales_all_figures(accelerator: bool, values: list[float], exponent: int, cut: int) -> None:
    """Measured whole and merged of two parts, at every scale as at that of 1."""
    plain = torch.tensor(values, dtype=torch.float64)
    plain = torch.where(plain.abs() < 1e-6, 0.0, plain)
    expected = float64_stats(plain).scaled(2.0**exponent)
    tensor = plain * 2.0**exponent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "on_cpu", lambda values: not accelerator)
        found = [stats(tensor), TensorStats.merge([stats(tensor[:cut]), stats(tensor[cut:])])]
    for each in found:
        assert each.mean == pytest.approx(expected.mean, rel=1e-9, abs=1e-12 * 2.0**exponent)
        assert (each.std, each.l2) == pytest.approx((expected.std, expected.l2), rel=1e-9, abs=1e-12 * 2.0**exponent)


@pytest.mark.parametrize("accelerator", [False, True])
def test_magnitudes_that_overflow_their_own_precision(accelerator: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "on_cpu", lambda values: not accelerator)
    found = stats(torch.full((4,), complex(3e38, 3e38), dtype=torch.complex64))
    assert found.inf == 0 and found.max == pytest.approx(math.sqrt(2) * 3e38, rel=1e-6)
    found = stats(torch.full((4,), complex(1.7e308, 1.7e308), dtype=torch.complex128))
    assert found.inf == 0 and found.max == pytest.approx(1.7976931348623157e308)
    found = stats(torch.tensor([complex(math.inf, 0), complex(math.nan, 1), 1j], dtype=torch.complex64))
    assert (found.inf, found.nan, found.l2) == (1, 1, 1)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_half_precision_complex_numbers() -> None:
    x = torch.randn(1000, 2, dtype=torch.float64).half()
    exact = torch.view_as_complex(x.double()).abs()
    assert stats(torch.view_as_complex(x)).std == pytest.approx(exact.std().item(), rel=1e-6)


def test_jagged_tensors_with_holes() -> None:
    values = torch.arange(36.0).view(9, 4)
    offsets, lengths = torch.tensor([0, 3, 6, 9]), torch.tensor([1, 2, 0])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets, lengths)
    rows = torch.cat([values[:1], values[3:5]])
    assert_stats(stats(nested), float64_stats(rows))
    assert_stats(stats(nested * 2), float64_stats(rows * 2))


# Without a finite element.


def test_without_a_finite_element_there_is_no_norm() -> None:
    nothing, some = stats(torch.full((3,), math.inf)), stats(torch.tensor([3.0, 4.0]))
    assert math.isnan(nothing.l2) and math.isnan(TensorStats.merge([nothing, nothing]).l2)
    assert TensorStats.merge([nothing, some]).l2 == 5
    assert math.isnan(stats(torch.empty(0)).l2) and math.isnan(TensorStats.merge([]).l2)
    assert math.isnan(TensorStats.merge([nothing, stats(torch.empty(0))]).l2)


def test_results_come_back_in_order() -> None:
    tensors = [torch.full((3,), float(i)) for i in range(5)]
    assert [found.mean for found in resolve([measure(t) for t in tensors])] == [0, 1, 2, 3, 4]


VIEWS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.transpose(0, -1),
    lambda x: x[::2],
    lambda x: x[..., 1:],
    lambda x: x[..., 0] if x.numel() else x,
    lambda x: x[..., None].expand(*x.shape, 3),
    lambda x: x[None].expand(2, *x.shape),
    lambda x: x.diagonal() if x.dim() > 1 else x,
    lambda x: x.unfold(0, 2, 1) if x.dim() and len(x) > 2 else x,
)


@pytest.mark.sweep
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), views=st.lists(st.sampled_from(VIEWS), max_size=4))
@examples(100)
def test_views_of_any_strides(shape: list[int], views: list[Callable[[Tensor], Tensor]]) -> None:
    x = torch.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    for view in views:
        x = view(x) if x.dim() else x
    assert_stats(stats(x), float64_stats(x))

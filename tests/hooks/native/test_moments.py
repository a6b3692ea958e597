"""The extension's own statistics agree with float64 within 1e-5, whatever the gradient, on both of its paths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import assert_stats, float64_stats, swept
from torch import Tensor

from hookcli.hooks.native import build
from hookcli.hooks.native.timeline import Timeline
from hookcli.table import STATS_KEYS, TensorStats


class Hands(torch.autograd.Function):
    """Gives the gradient that it was made with."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


def measured(gradient: Tensor, **settings: Any) -> TensorStats | None:
    x = torch.zeros(gradient.shape, dtype=gradient.dtype, requires_grad=True)
    y = Hands.apply(x, gradient)
    with Timeline([y], **settings) as timeline:
        y.backward()
    (node,) = (node for node in timeline.nodes() if node.name == "HandsBackward")
    record = node.grad_inputs[0]
    assert record and record.shape == tuple(gradient.shape) and record.dtype == str(gradient.dtype)[6:]
    return record.stats


def _with(x: Tensor, *values: float) -> Tensor:
    for index, value in zip((5, 70, 700), values, strict=False):
        x.view(-1)[index] = value
    return x


CASES: dict[str, Callable[[], Tensor]] = {
    "normal": lambda: torch.randn(3, 700, 500),
    "odd": lambda: torch.randn(8192 * 5 + 512 + 37),
    "mean far above spread": lambda: 1e4 + 1e-2 * torch.randn(700_000),
    "mean a million": lambda: 1e6 + torch.randn(1000, 1000),
    "mean 100 spreads away": lambda: 100 + torch.randn(1000, 1000),
    "mean 3 spreads away": lambda: -3 + torch.randn(1000, 1000),
    "first element far out": lambda: _with(100 + torch.randn(1000, 1000), 1.0).roll(-5),
    "constant": lambda: torch.full((700_000,), 0.1),
    "constant and zeros": lambda: torch.full((600_000,), 1 / 3).index_fill(0, torch.arange(0, 600_000, 2), 0.0),
    "one far out": lambda: _with(torch.zeros(100_000), 1e9),
    "relu": lambda: torch.randn(1000, 1000).relu(),
    "all zero": lambda: torch.zeros(1000),
    "all zero, double": lambda: torch.zeros(1000, dtype=torch.float64),
    "minus zero": lambda: -torch.zeros(100),
    "one": lambda: torch.tensor([3.0]),
    "scalar": lambda: torch.tensor(-2.5),
    "none": lambda: torch.empty(0, 3),
    "nan": lambda: _with(torch.randn(1000), math.nan),
    "nan first": lambda: torch.cat([torch.tensor([math.nan]), torch.randn(1000)]),
    "nan and inf": lambda: _with(torch.randn(1000), math.nan, math.inf, -math.inf),
    "inf and a far mean": lambda: _with(1e5 + torch.randn(1000), math.inf),
    "only nan": lambda: torch.full((5,), math.nan),
    "float16": lambda: torch.randn(1000, 100).half(),
    "float16 that overflows": lambda: torch.full((70_000,), 300.0).half(),
    "float16 with inf": lambda: _with(torch.randn(1000).half(), math.inf, math.nan),
    "bfloat16": lambda: (3 + torch.randn(1000, 100)).bfloat16(),
    "float64": lambda: 1e8 + torch.randn(10_000, dtype=torch.float64),
    "float64 beyond float32": lambda: torch.randn(10_000, dtype=torch.float64) * 1e100,
    "huge": lambda: torch.randn(1000) * 1e30,
    "tiny": lambda: torch.randn(1000) * 1e-30,
    "channels_last": lambda: torch.randn(4, 16, 40, 40).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(300, 400).T,
    "slice": lambda: torch.randn(900, 1000)[:, ::3],
    "slice of much": lambda: torch.randn(2, 3, 1000, 300)[:, 1, :, 1:],
    "slice of float16": lambda: torch.randn(90, 1000)[:, ::3].half()[::2],
    "expanded": lambda: torch.tensor([[1.5], [2.5]]).expand(2, 400_000),
    "complex": lambda: torch.randn(1000, dtype=torch.complex64),
    "negative view": lambda: torch.randn(1000, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 5, 5]]), torch.tensor([1.0, 2.0, 3.0]), (10,)),
}


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e306, 1e-306])
@pytest.mark.parametrize("end", [1.0, math.nan])
def test_doubles_whose_squares_leave_their_range(scale: float, on_device: bool, end: float) -> None:
    plain = torch.tensor([1.0, -0.5, 0.0, 0.25, end], dtype=torch.float64)
    found = measured(plain * scale, _as_on_device=on_device)
    assert_stats(found, float64_stats(plain).scaled(scale))


@pytest.mark.parametrize("on_device", [False, True])
def test_magnitudes_that_overflow_their_own_precision(on_device: bool) -> None:
    found = measured(torch.full((4,), complex(3e38, 3e38), dtype=torch.complex64), _as_on_device=on_device)
    assert found is not None and found.inf == 0 and found.max == pytest.approx(math.sqrt(2) * 3e38, rel=1e-6)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("threads", [swept(1), 3])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_float64(name: str, threads: int) -> None:
    torch.manual_seed(0)
    gradient = CASES[name]()
    torch.set_num_threads(threads)
    try:
        found = measured(gradient)
    finally:
        torch.set_num_threads(1)
    assert_stats(found, float64_stats(gradient.resolve_neg()))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", CASES)
def test_the_path_for_accelerators_agrees_too(name: str) -> None:
    """The same operations that run on a GPU, here on the CPU's memory."""
    torch.manual_seed(0)
    gradient = CASES[name]()
    assert_stats(measured(gradient, _as_on_device=True), float64_stats(gradient.resolve_neg()))


@pytest.mark.parametrize("length", [*range(1, 70), 511, 512, 513, 8191, 8192, 8193, 65_535, 65_537, 131_073])
def test_no_element_is_missed_or_taken_twice(length: int) -> None:
    """Whole numbers, so that every sum is exact: one wrong index would show."""
    gradient = torch.arange(length, dtype=torch.float32).remainder(13) - 6
    found = measured(gradient)
    assert found is not None
    assert found.zeros == int((gradient == 0).sum()) and found.numel == length
    assert found.l2**2 == pytest.approx((gradient**2).sum().item(), rel=1e-12)
    assert found.mean * length == pytest.approx(gradient.sum().item(), abs=1e-9)
    assert (found.min, found.max) == (gradient.min().item(), gradient.max().item())


@pytest.mark.parametrize("value", [1e-3, 0.1, 1 / 3, 0.7])
def test_rounding_does_not_pile_up_where_all_elements_are_equal(value: float) -> None:
    """Half of them negative, so that the mean is near zero and the sums of floats are trusted."""
    gradient = torch.full((3_000_000,), value)
    gradient[::2] *= -1
    assert_stats(measured(gradient), float64_stats(gradient), 2e-6)


def test_cpp_names_the_statistics_in_the_order_of_reports() -> None:
    build.load()
    assert tuple(torch.ops.hookcli_native.statistics()) == STATS_KEYS

"""Sums in C++ are those that PyTorch's operators take, and are taken only of memory that is really there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import assert_stats, float64_stats
from torch import Tensor
from torch.func import grad
from torch.testing._internal.two_tensor import TwoTensor

from hookcli.tensors import sums as module
from hookcli.tensors.stats import stats
from hookcli.tensors.sums import Sums, by_operators, sums

needs_library = pytest.mark.skipif(
    module.built is None and os.environ.get("HOOKCLI_TEST_NATIVE") != "required", reason="installed without a compiler"
)


@needs_library
def test_it_is_built_where_there_is_a_compiler() -> None:
    assert module.built is not None


@needs_library
@pytest.mark.parametrize("numel", [1, 2, 15, 16, 17, 31, 33, 511, 513, 8191, 8193, 100_003])
@pytest.mark.parametrize("make", [torch.randn, torch.ones, torch.zeros, lambda n: torch.randn(n).relu() - 0.0])
def test_every_length_counts_each_element_once(numel: int, make: Callable[[int], Tensor]) -> None:
    torch.manual_seed(numel)
    block = make(numel)
    wide = block.double()
    found = sums(block)
    assert (found.low, found.high) == (wide.min().item(), wide.max().item())
    assert found.zeros == (wide == 0).sum().item()
    assert found.total == pytest.approx(wide.sum().item(), rel=1e-6, abs=1e-6 * wide.abs().sum().item())
    assert found.squares == pytest.approx((wide * wide).sum().item(), rel=1e-6)


@needs_library
def test_one_that_does_not_begin_where_memory_is_aligned() -> None:
    x = torch.arange(100, dtype=torch.float32)
    assert sums(x[3:60]) == by_operators(x[3:60].clone()) == Sums(3, 59, 57 * 31, sum(n * n for n in range(3, 60)), 0)


@needs_library
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 40, 99])
def test_what_is_not_finite_shows_in_the_total(bad: float, place: int) -> None:
    x = torch.zeros(100)
    x[place] = bad
    assert not torch.isfinite(torch.tensor(sums(x).total))


def _calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that the library is called with."""
    seen: list[int] = []
    inner = module.built
    monkeypatch.setattr(module, "built", lambda address, n: seen.append(n) or (inner or _refused)(address, n))
    return seen


def _refused(*args: Any) -> Any:
    raise AssertionError("there is no library")


@needs_library
def test_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _calls(monkeypatch)
    stats(torch.nn.Parameter(torch.randn(5, 7)))
    assert seen == [35]


def test_many_threads_of_pytorchs_are_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _calls(monkeypatch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert sums(torch.ones(5)) == Sums(1, 1, 5, 5, 0) and seen == []


def test_memory_that_two_tensors_share_until_one_is_written_to_stays_shared() -> None:
    x = torch._lazy_clone(torch.ones(5))
    assert stats(x).mean == 1 and torch._C._is_cow_tensor(x)


def test_inference_mode_leaves_nothing_that_is_of_no_use_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "built", None)

    def work() -> None:
        with torch.inference_mode():
            found.append(stats(torch.ones(3)).mean)
        found.append(stats(torch.ones(3)).mean)

    found: list[float] = []
    thread = threading.Thread(target=work)  # has a scratch block of its own
    thread.start()
    thread.join()
    assert found == [1, 1]


def test_a_lazily_negated_tensor_is_read_negated() -> None:
    x = torch.randn(50, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    assert_stats(stats(x), float64_stats(x))


def test_functorchs_wrappers_have_no_memory() -> None:
    found = []

    def loss(x: Tensor) -> Tensor:
        found.append(stats(x * 2))
        return x.sum()

    grad(loss)(torch.tensor([1.0, -3.0]))
    assert (found[0].min, found[0].max, found[0].l2) == (-6.0, 2.0, pytest.approx(40**0.5))


def test_subclasses_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is made of two tensors has no memory of its own."""
    seen = _calls(monkeypatch)
    assert stats(TwoTensor(torch.ones(3), torch.ones(3))).l2 == pytest.approx(3**0.5)
    assert seen == []


def test_without_the_library_operators_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "built", None)
    assert sums(torch.tensor([1.0, -2.0, 0.0, 5.0])) == Sums(-2.0, 5.0, 4.0, 30.0, 1.0)

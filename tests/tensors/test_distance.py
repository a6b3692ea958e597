"""The discrepancy of two tensors, against PyTorch in float64."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hookcli.table.discrepancy import Discrepancy
from hookcli.tensors import distance, library
from hookcli.tensors.chunks import PendingFigures

needs_library = pytest.mark.skipif(
    library.loaded is None and os.environ.get("HOOKCLI_TEST_NATIVE") != "required",
    reason="installed without a compiler",
)


def found(a: Tensor, b: Tensor) -> Discrepancy:
    pending = distance.compare(a, b)
    assert pending is not None
    return distance.resolve([pending])[0]


def reference(a: Tensor, b: Tensor) -> dict[str, float]:
    a, b = a.detach().reshape(-1).double(), b.detach().reshape(-1).double()
    error = a - b
    return {
        "numel": a.numel(),
        "max_abs": error.abs().max().item(),
        "mean_abs": error.abs().mean().item(),
        "rel_l2": (error.norm() / a.norm()).item(),
        "cosine": torch.nn.functional.cosine_similarity(a, b, dim=0).item(),
        "error_l2": error.norm().item(),
    }


def check(a: Tensor, b: Tensor) -> None:
    """Compare them in C++, if it was built, and by PyTorch's operators."""
    for loaded in {library.loaded, None}:
        with patch.object(library, "loaded", loaded):
            _check(a, b)


def _check(a: Tensor, b: Tensor) -> None:
    figures, expected = found(a, b).figures(), reference(a, b)
    # The angle comes from the norms: of tensors of very different sizes it is known to fewer digits.
    sizes = sorted(x.detach().double().norm().item() for x in (a, b))
    angle = 2e-5 + 2e-7 * (sizes[1] / sizes[0] if sizes[0] else 0)
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value, rel=1e-5, abs=angle if name == "cosine" else 1e-12), name
    assert figures["nonfinite"] == 0


def _by_library(a: Tensor, b: Tensor) -> library.Apart:
    sums = library.loaded.distance(a, b) if library.loaded else None
    assert sums is not None
    return sums


@given(
    shape=st.lists(st.integers(1, 9), min_size=0, max_size=4),
    dtypes=st.tuples(*[st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64])] * 2),
    error=st.sampled_from([1e-1, 1.0, 30.0]),
    seed=st.integers(0, 1000),
)
def test_small_tensors(shape: list[int], dtypes: tuple[torch.dtype, torch.dtype], error: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(shape, generator=generator).to(dtypes[0])
    b = (a.float() + error * torch.randn(shape, generator=generator)).to(dtypes[1])
    check(a, b)


@needs_library
@pytest.mark.parametrize("numel", [1, 15, 16, 17, 255, 256, 257, 4095, 4096, 4113, 100_003])
def test_every_length_counts_each_element_once(numel: int) -> None:
    """All figures of the library are those of operators, and of float64."""
    a, b = torch.randn(2, numel, generator=torch.Generator().manual_seed(numel))
    measured = _by_library(a, b)
    error = (a - b).double().abs()
    wide = (error.max(), error.sum(), *((x * x).sum() for x in (error, a.double(), b.double())))
    assert measured == pytest.approx([x.item() for x in wide], rel=1e-6)
    assert measured == pytest.approx(distance.by_operators(a, b), rel=1e-5)


@needs_library
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 40, 99])
def test_what_is_not_finite_shows_in_the_total(bad: float, place: int) -> None:
    """On either side, and in both: the difference of two infinite values is NaN."""
    for sides in ((0,), (1,), (0, 1)):
        both = torch.zeros(2, 100)
        both[list(sides), place] = bad
        assert not math.isfinite(_by_library(both[0], both[1]).total)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": Tensor.contiguous,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "with gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_layouts_are_compared_element_by_element(left: str, right: str) -> None:
    """Larger than a block, so that both are split the same way."""
    x = torch.randn(3, 7, 61, 59, generator=torch.Generator().manual_seed(0))
    with patch.object(distance, "CHUNK", 1 << 14):
        check(LAYOUTS[left](x), LAYOUTS[right](x + 0.01 * x.flip(0)))


def test_no_temporary_is_larger_than_a_block() -> None:
    a, b = torch.randn(4_000_000), torch.randn(4_000_000)
    made = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **kwargs or {})
            made.extend(t.untyped_storage().nbytes() for t in (out if isinstance(out, tuple) else (out,))
                        if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in known)  # fmt: skip
            return out

    known = {a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr()}
    with Sizes(), patch.object(library, "loaded", None):
        distance.compare(a, b)
    assert made and max(made) <= 4 * distance.CHUNK


def test_a_tiny_angle_keeps_its_digits() -> None:
    """float64 says 1 - cosine = 5e-11, which the dot product in float32 could not."""
    a = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    other = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    other -= a * (a @ other) / (a @ a)
    b = a + 1e-5 * other * a.norm() / other.norm()
    assert 1 - found(a, b).cosine == pytest.approx(5e-11, rel=1e-4)


def test_what_is_not_finite_is_counted_where_it_differs() -> None:
    a = torch.tensor([1.0, math.nan, math.inf, math.inf, 2.0, -math.inf])
    b = torch.tensor([1.5, math.nan, math.inf, -math.inf, math.nan, 7.0])
    figures = found(a, b)
    assert (figures.nonfinite, figures.max_abs, figures.numel) == (3, 0.5, 6)
    assert figures.error_l2 == 0.5 and figures.a_l2 == 1.0


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e18, 1e30])
def test_squares_that_leave_float32(size: float) -> None:
    a = size * torch.tensor([1.0, 2.0, 3.0])
    figures = found(a, a * torch.tensor([1.0, 1.0, 1.5]))
    assert figures.rel_l2 == pytest.approx(1.5 / math.sqrt(14), rel=1e-5)
    assert figures.max_abs == pytest.approx(1.5 * size, rel=1e-5)


def test_equal_tensors_and_zeros() -> None:
    x = torch.randn(1000)
    assert found(x, x.clone()).error_l2 == 0 and found(x, x).cosine == 1.0
    zeros = torch.zeros(5)
    assert found(zeros, zeros).rel_l2 == 0 and math.isnan(found(zeros, zeros).cosine)
    assert found(zeros, torch.ones(5)).rel_l2 == math.inf
    assert found(torch.empty(0), torch.empty(0)).numel == 0


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
def test_other_kinds_of_tensors() -> None:
    check(torch.arange(10), torch.arange(10) ** 2)
    assert found(torch.tensor([True, False]), torch.tensor([True, True])).max_abs == 1
    complex_a, complex_b = torch.tensor([3 + 4j, 1j]), torch.tensor([3 + 4j, 2j])
    assert (found(complex_a, complex_b).error_l2, found(complex_a, complex_b).numel) == (1.0, 4)
    one, turned = torch.ones(3), torch.full((3,), 1j)
    assert found(one, turned).error_l2 == pytest.approx(math.sqrt(6)) == found(turned, one).error_l2
    dense = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    assert found(dense.to_sparse(), dense + 1) == found(dense, dense + 1)
    quantized = torch.quantize_per_tensor(torch.tensor([0.0, 1.0]), 0.5, 0, torch.qint8)
    assert found(quantized, torch.tensor([0.0, 1.5])).max_abs == 0.5
    assert distance.compare(torch.empty(3, device="meta"), torch.empty(3)) is None


@pytest.mark.sweep
@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(0, 100))
def test_merging_is_that_of_the_concatenation(sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [[torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(2)] for n in sizes]
    merged = Discrepancy.merge(found(a, b) for a, b in parts)
    whole = found(*(torch.cat(side) for side in zip(*parts, strict=True)))
    for name, value in whole.figures().items():
        assert merged.figures()[name] == pytest.approx(value, nan_ok=True), name
    assert Discrepancy.of(merged.figures()) == merged


def test_nested_tensors_are_compared_item_by_item() -> None:
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    changed = [parts[0], parts[1] + 0.1]
    for layout in (torch.strided, torch.jagged):
        a, b = (torch.nested.nested_tensor(items, layout=layout) for items in (parts, changed))
        turned = torch.nested.nested_tensor([x.T.contiguous() for x in changed]).transpose(1, 2)
        for other in (b, turned):
            figures = found(a, other).figures()
            expected = reference(torch.cat(parts), torch.cat(changed))
            assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_large_integers_that_float64_cannot_tell_apart() -> None:
    a = torch.tensor([2**60, -(2**63), 3, 2**63 - 1])
    b = torch.tensor([2**60 + 5, -(2**63) + 1, 3, -(2**63)])
    figures = [distance.compare(a[:3], b[:3]), PendingFigures([], distance._device_rows(a[:3], b[:3]))]
    for near in distance.resolve(figures):
        assert (near.max_abs, near.mean_abs, near.error_l2) == (5, 2, pytest.approx(math.sqrt(26)))
    assert found(a, b).max_abs == 2.0**64  # and no overflow where they are far apart


def test_a_cosine_is_never_above_one() -> None:
    """Norms of which each is rounded may say that the error is smaller than what they are apart."""
    for factor in (1 + 1e-7, 3.0, 1e6):
        assert Discrepancy(1, error_l2=abs(factor - 1) * (1 - 1e-9), a_l2=1.0, b_l2=factor).cosine == 1.0


def test_norms_on_a_device_leave_float64s_range_only_where_the_norm_does() -> None:
    """Squares of 3e200 do not fit into float64; those of float32 always do, and are not scaled."""
    for size in (1e200, 1e-200):
        x = torch.tensor([3 * size, -4 * size], dtype=torch.float64)
        assert distance._device_norm(x, True).item() == pytest.approx(5 * size)
    assert distance._device_norm(torch.tensor([3.0, 4.0]), False).item() == 5

"""Statistics in C++ are those of float64, in any number of threads, and of memory that is really there alone."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import assert_stats, float64_stats
from torch import Tensor
from torch.func import grad
from torch.testing._internal.two_tensor import TwoTensor

from hookcli.table import TensorStats
from hookcli.tensors import library
from hookcli.tensors.stats import stats

needs_library = pytest.mark.skipif(
    library.loaded is None and os.environ.get("HOOKCLI_TEST_NATIVE") != "required",
    reason="installed without a compiler",
)


def of(x: Tensor) -> TensorStats:
    """By the library."""
    assert library.loaded is not None
    found = library.loaded.statistics(x, hist=False)
    assert found is not None
    return TensorStats.measured(found[0])


def test_without_the_library_the_reason_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "loaded", None)
    monkeypatch.setattr(library, "_FILE", tmp_path / "sums.so")
    assert library.described() == "PyTorch's operators (hookcli was installed without a C++ compiler)"
    (tmp_path / "sums.so").write_text("of another machine")
    assert library.described().endswith("sums.so is of another machine or of another hookcli: install hookcli again)")


@needs_library
def test_it_is_built_where_there_is_a_compiler() -> None:
    assert library.loaded is not None


@needs_library
@pytest.mark.parametrize("numel", [1, 2, 15, 16, 17, 31, 33, 511, 513, 8191, 8193, 65_537, 100_003])
@pytest.mark.parametrize("make", [torch.randn, torch.ones, torch.zeros, lambda n: torch.randn(n).relu() - 0.0])
def test_every_length_counts_each_element_once(numel: int, make: Callable[[int], Tensor]) -> None:
    torch.manual_seed(numel)
    x = make(numel)
    assert_stats(of(x), float64_stats(x))


@needs_library
def test_one_that_does_not_begin_where_memory_is_aligned() -> None:
    x = torch.arange(100, dtype=torch.float32)
    assert_stats(of(x[3:60]), float64_stats(x[3:60]))


DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    torch.bool,
]


@needs_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read_without_a_copy(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(70_003) * 100
    x = (x > 0 if dtype is torch.bool else x.abs() if dtype is torch.uint8 else x).to(dtype)
    of(x[:1])  # the values of bytes are asked for once
    monkeypatch.setattr(Tensor, "to", None)
    found = of(x)
    monkeypatch.undo()
    assert_stats(found, float64_stats(x.float() if dtype.itemsize == 1 else x))


GAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "every third": lambda x: x.flatten()[1::3],
    "a column": lambda x: x[..., 2],
    "a column of a few": lambda x: x[:, 3:4, :, :3],
    "rows": lambda x: x[:, 1:],
    "transposed": lambda x: x[1:, :, :-1].transpose(0, 3),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last)[:, 2:9],
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "expanded outside": lambda x: x[None, :, :, :, 1:].expand(3, -1, -1, -1, -1),
    "from one": lambda x: x[0, 0, 0, 0].expand(7, 1, 2),
    "overlapping": lambda x: x.flatten().unfold(0, 5, 2),
    "diagonal": lambda x: x[0, 0].diagonal(),
}


@needs_library
@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8], ids=str)
def test_memory_with_gaps_is_read_without_a_copy(name: str, dtype: torch.dtype) -> None:
    """In several blocks, and in rows that are longer and shorter than what is read at once."""
    for shape in ((9, 11, 30, 31), (2, 10, 3, 5003)):
        x = GAPS[name](
            (torch.arange(math.prod(shape)) % 1013 % 251 - (dtype != torch.uint8) * 90).to(dtype).view(shape)
        )
        expected, found = float64_stats(x.float() if dtype == torch.uint8 else x), of(x)
        assert_stats(found, expected)
        assert (found.min, found.max, found.zeros) == (expected.min, expected.max, expected.zeros)


@needs_library
def test_more_dimensions_than_the_library_takes_are_left_to_operators() -> None:
    x = torch.arange(200_000.0).as_strided([2] * 17, [2**k + k % 2 for k in range(17)])
    assert library.loaded is not None and library.loaded.statistics(x, hist=False) is None
    assert_stats(stats(x), float64_stats(x))


@pytest.mark.sweep
@needs_library
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_16_bit_number_is_widened_as_pytorch_does(dtype: torch.dtype) -> None:
    x = torch.arange(-32768, 32768).to(torch.int16).view(dtype)
    for part in x.split(64):
        assert_stats(of(part), float64_stats(part))


@needs_library
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 40, 99])
def test_what_is_not_finite_is_counted_and_left_out(bad: float, place: int) -> None:
    x = torch.arange(100.0)
    x[place] = bad
    assert_stats(of(x), float64_stats(x))


def _calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that the library is called with."""
    seen: list[int] = []
    loaded = library.loaded
    assert loaded is not None
    inner = loaded._statistics
    monkeypatch.setattr(loaded, "_statistics", lambda address, n, *rest: seen.append(n) or inner(address, n, *rest))
    return seen


@needs_library
def test_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _calls(monkeypatch)
    stats(torch.nn.Parameter(torch.randn(5, 7)))
    stats(torch.randn(4, 16, 40, 40).to(memory_format=torch.channels_last))
    assert seen == [35, 102_400]


def test_memory_that_two_tensors_share_until_one_is_written_to_stays_shared() -> None:
    x = torch._lazy_clone(torch.ones(5))
    assert stats(x).mean == 1 and torch._C._is_cow_tensor(x)


def test_inference_mode_leaves_nothing_that_is_of_no_use_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "loaded", None)

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


@needs_library
def test_subclasses_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is made of two tensors has no memory of its own."""
    seen = _calls(monkeypatch)
    assert stats(TwoTensor(torch.ones(3), torch.ones(3))).l2 == pytest.approx(3**0.5)
    assert seen == []


def test_without_the_library_operators_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "loaded", None)
    found = stats(torch.tensor([1.0, -2.0, 0.0, 5.0]))
    assert (found.min, found.max, found.mean, found.l2, found.zeros) == (-2.0, 5.0, 1.0, 30.0**0.5, 1)


@needs_library
def test_subnormal_numbers_are_no_zeros_where_the_program_takes_them_for_zeros() -> None:
    x = torch.full((10,), 1e-40)
    torch.set_flush_denormal(True)
    try:
        found = of(x)
        assert torch.ones(1) * 1e-40 == 0  # as before
    finally:
        torch.set_flush_denormal(False)
    assert (found.zeros, found.min) == (0, x[0].double().item())


@needs_library
@pytest.mark.parametrize(
    "name", ["hookcli_types", "hookcli_strided_statistics_fields", "hookcli_distance_of_types_fields"]
)
def test_a_library_of_another_hookcli_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner: Any = library._text
    monkeypatch.setattr(library, "_text", lambda lib, asked: "other" if asked == name else inner(lib, asked))
    assert library._loaded() is None


def test_a_file_that_is_no_library_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_sums.so").write_text("of another machine")
    with pytest.raises(OSError, match="_sums"):
        library.Library(tmp_path / "_sums.so")
    with pytest.raises(OSError, match="none"):
        library.Library(tmp_path / "none.so")

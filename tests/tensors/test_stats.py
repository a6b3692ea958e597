"""Statistics of every dtype and layout, against float64."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from types import BuiltinFunctionType

import pytest
import torch
from support import assert_stats, float64_stats
from torch import Tensor

from hookcli.tensors import chunks, library
from hookcli.tensors import stats as module
from hookcli.tensors.chunks import PendingFigures
from hookcli.tensors.stats import Reducer, measure, resolve, stats


def _with(x: Tensor, **places: float) -> Tensor:
    for index, value in zip((5, 70, 700), places.values(), strict=False):
        x.view(-1)[index] = value
    return x


CASES: dict[str, Callable[[], Tensor]] = {
    "normal": lambda: torch.randn(3, 700, 500),
    "more than a block": lambda: torch.randn(module.CHUNK + 3),
    "mean far above spread": lambda: 1e4 + 1e-2 * torch.randn(700_000),
    "mean a million": lambda: 1e6 + torch.randn(1000, 1000),
    "mean 100 spreads away": lambda: 100 + torch.randn(1000, 1000),
    "constant": lambda: torch.full((700_000,), 0.1),
    "constant and zeros": lambda: torch.full((600_000,), 1 / 3).index_fill(0, torch.arange(0, 600_000, 2), 0.0),
    "relu": lambda: torch.randn(1000, 1000).relu(),
    "all zero": lambda: torch.zeros(1000),
    "one": lambda: torch.tensor([3.0]),
    "scalar": lambda: torch.tensor(-2.5),
    "none": lambda: torch.empty(0, 3),
    "nan": lambda: _with(torch.randn(1000), a=math.nan),
    "nan and inf": lambda: _with(torch.randn(1000), a=math.nan, b=math.inf, c=-math.inf),
    "only nan": lambda: torch.full((5,), math.nan),
    "float16": lambda: torch.randn(1000, 100).half(),
    "float16 that overflows": lambda: torch.full((70_000,), 300.0).half(),
    "bfloat16": lambda: (3 + torch.randn(1000, 100)).bfloat16(),
    "float64": lambda: 1e8 + torch.randn(10_000, dtype=torch.float64),
    "huge": lambda: torch.randn(1000) * 1e30,
    "tiny": lambda: torch.randn(1000) * 1e-30,
    "channels_last": lambda: torch.randn(4, 16, 40, 40).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(300, 400).T,
    "slice": lambda: torch.randn(900, 1000)[:, ::3],
    "slice of much": lambda: torch.randn(2, 3, 1000, 300)[:, 1, :, 1:],
    "expanded": lambda: torch.tensor([[1.5], [2.5]]).expand(2, 400_000),
    "expanded from one": lambda: torch.tensor(3.0).expand(7),
    "expanded to a column": lambda: torch.tensor([1.5]).expand(6, 1),
    "every third": lambda: torch.arange(100.0)[::3],
    "a column": lambda: torch.randn(50, 4)[:, 2],
    "int64": lambda: torch.randint(-5, 1000, (1000,)),
    "uint8": lambda: torch.randint(0, 256, (100_000,), dtype=torch.uint8),
    "bool": lambda: torch.randn(1000) > 0.5,
    "complex": lambda: torch.randn(1000, dtype=torch.complex64),
    "sparse": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 5, 5]]), torch.tensor([1.0, 2.0, 3.0]), (10,)),
    "parameter": lambda: torch.nn.Parameter(torch.randn(10, 10)),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_float64(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the C++ that is built at installation, where it was, and by PyTorch's operators."""
    if not compiled:
        monkeypatch.setattr(library, "loaded", None)
    torch.manual_seed(0)
    tensor = CASES[name]()
    assert_stats(stats(tensor), float64_stats(tensor))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", CASES)
def test_the_path_for_accelerators_agrees_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same operations that run on a GPU, here on the CPU's memory."""
    torch.manual_seed(0)
    tensor = CASES[name]()
    monkeypatch.setattr(chunks, "DEVICE_CHUNK", 100_000)
    monkeypatch.setattr(chunks, "on_cpu", lambda values: False)
    pending = measure(tensor)
    assert pending.on_device is not None or tensor.numel() == 0
    assert_stats(resolve([pending])[0], float64_stats(tensor))


def test_quantized_values_are_those_that_they_stand_for() -> None:
    tensor = torch.randn(100)
    quantized = torch.quantize_per_tensor(tensor, 0.1, 10, torch.quint8)
    assert_stats(stats(quantized), float64_stats(quantized.dequantize()))


def test_nested_tensors() -> None:
    parts = [torch.randn(3, 4), torch.randn(2, 4)]
    nested = torch.nested.nested_tensor(parts)
    assert_stats(stats(nested), float64_stats(torch.cat(parts)))


def test_meta_tensors_have_a_size_and_no_values() -> None:
    found = stats(torch.empty(3, 4, device="meta"))
    assert found.numel == 12 and math.isnan(found.mean) and math.isnan(found.l2)


def test_hand_computed() -> None:
    found = stats(torch.tensor([1.0, -2.0, 0.0, 5.0]))
    assert (found.numel, found.mean, found.min, found.max, found.zeros) == (4, 1.0, -2.0, 5.0, 1)
    assert found.std == pytest.approx(math.sqrt((0 + 9 + 1 + 16) / 3)) and found.l2 == pytest.approx(math.sqrt(30))


def test_measuring_changes_nothing() -> None:
    x = torch.randn(10, requires_grad=True)
    y = (x * 2).clone()
    copy, version = y.detach().clone(), y._version
    rng = torch.get_rng_state()
    measure(y)
    assert torch.equal(y, copy) and y._version == version and torch.equal(rng, torch.get_rng_state())
    y.sum().backward()
    assert x.grad is not None


def test_dense_memory_is_not_copied() -> None:
    """What is allocated while a large channels_last tensor is measured is far less than the tensor."""
    tensor = torch.randn(8, 64, 64, 64).to(memory_format=torch.channels_last)
    measure(tensor)  # the scratch block is made once
    with torch.profiler.profile(profile_memory=True) as profile:
        measure(tensor)
    largest = max((event.cpu_memory_usage for event in profile.events()), default=0)
    assert largest < tensor.numel() * 4 / 50


def test_an_unchanged_tensor_is_reduced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Tensor] = []
    monkeypatch.setattr(module, "measure", lambda t, hist: calls.append(t) or PendingFigures([]))
    reduce, x = Reducer(), torch.ones(3)
    first = reduce(x)
    assert reduce(x) is first and len(calls) == 1
    x.add_(1)
    reduce(x)
    reduce(x.clone())
    assert len(calls) == 3


WRITES: dict[str, Callable[[Tensor], object]] = {
    "scaled": lambda x: x.data.mul_(3),
    "one element": lambda x: x.data.view(-1)[7:8].fill_(5),
    "through NumPy": lambda x: x.numpy().fill(2),
    "in place": lambda x: x.clamp_(min=0),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64])
def test_what_is_written_past_the_version_counter_is_seen(write: str, dtype: torch.dtype) -> None:
    if write == "in place" and dtype.is_complex:
        return
    reduce, x = Reducer(), (torch.randn(40, 30) * 100).to(dtype)
    reduce(x)
    WRITES[write](x)
    assert_stats(resolve([reduce(x)])[0], float64_stats(x))


def test_a_large_tensor_that_is_written_through_data_is_reduced_again() -> None:
    reduce, x = Reducer(), torch.randn(300, 400)
    reduce(x)
    x.data.mul_(3)
    assert_stats(resolve([reduce(x)])[0], float64_stats(x))


@pytest.mark.parametrize("size", [4, 300])
def test_views_of_all_elements_have_the_figures_that_are_known_while_nothing_has_changed(size: int) -> None:
    reduce, x = Reducer(), torch.randn(size, size, 2)
    known = reduce(x)
    assert reduce(x.view(-1)) is known and reduce(x.detach()) is known
    reduce(x[: size // 2]), reduce(x.view(torch.int32)), reduce(x.expand(2, size, size, 2))
    for y in (x.permute(2, 0, 1), x[: size // 2].view(-1), x.view(torch.int32).view(-1), x.add_(1).flatten()):
        assert_stats(resolve([reduce(y)])[0], float64_stats(y))
    y = x.view(-1)
    x.data.mul_(3)
    assert_stats(resolve([reduce(y)])[0], float64_stats(y))
    del x, y
    assert not reduce._seen._seen._entries


def test_the_memory_of_what_was_seen_holds_no_tensor() -> None:
    reduce = Reducer()
    held = []
    for _ in range(200):
        reduce(x := torch.ones(3))
        held.append(weakref.ref(x))
    del x
    assert not reduce._seen._seen._entries and not any(reference() is not None for reference in held)


def test_an_interrupt_as_a_tensor_dies_is_not_lost() -> None:
    """Python drops an exception that is raised in the callback of a weak reference; ours is written in C."""
    reduce, x = Reducer(), torch.ones(3)
    reduce(x)
    callbacks = [reference.__callback__ for reference in weakref.getweakrefs(x)]
    assert callbacks and all(isinstance(callback.func, BuiltinFunctionType) for callback in callbacks)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.float8_e4m3fn])
def test_dtypes_that_pytorch_does_not_sum(dtype: torch.dtype) -> None:
    x = torch.randn(40, 30, dtype=torch.complex64 if dtype.is_complex else None).to(dtype)
    wide = x.to(torch.complex128).abs() if dtype.is_complex else x.double()
    assert_stats(resolve([Reducer()(x)])[0], float64_stats(wide))

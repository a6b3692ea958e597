"""Histograms, against counts of numpy's in float64, and against PyTorch's own conversions."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hookcli.reporters import distributions, series
from hookcli.table import Report, Row, TensorStats
from hookcli.table.histogram import FORMATS, Histogram
from hookcli.tensors import distance, histograms
from hookcli.tensors import stats as tensor_stats
from hookcli.tensors.stats import CHUNK, measure, resolve, stats

_TYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}


def of(x: Tensor) -> TensorStats:
    (found,) = resolve([measure(x, hist=True)])
    return found


def counted(x: Tensor) -> dict[tuple[int, int], int]:
    """The number of finite elements other than 0 by sign and power of two, by numpy."""
    values = x.double().numpy().ravel()
    values = values[np.isfinite(values) & (values != 0)]
    powers = np.frexp(values)[1] - 1
    found: dict[tuple[int, int], int] = {}
    for sign in (-1, 1):
        keys, counts = np.unique(powers[np.sign(values) == sign], return_counts=True)
        found |= {(sign, int(k)): int(n) for k, n in zip(keys, counts, strict=True)}
    return found


def bins(found: Histogram | None) -> dict[tuple[int, int], int]:
    assert found is not None
    sides = ((-1, found.negative), (1, found.positive))
    return {(sign, k): n for sign, side in sides for k, n in enumerate(side, found.low) if n}


def wild(dtype: torch.dtype, numel: int = 4000) -> Tensor:
    """Numbers over the whole range of the dtype, with zeros, NaN and infinities among them."""
    generator = torch.Generator().manual_seed(3)
    info = torch.finfo(dtype)
    low, high = math.log2(info.smallest_normal) - 12, math.log2(info.max)
    powers = torch.empty(numel, dtype=torch.float64).uniform_(low, high, generator=generator)
    x = torch.exp2(powers) * torch.randn(numel, generator=generator, dtype=torch.float64).sign()
    x[::50], x[7], x[8], x[9] = 0.0, math.nan, math.inf, -math.inf
    x[10], x[11] = info.max, -info.max
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_counts_are_numpys(dtype: torch.dtype) -> None:
    x = wild(dtype)
    found = of(x)
    assert bins(found.hist) == counted(x)
    assert sum(bins(found.hist).values()) + found.zeros == found.finite
    plain = stats(x)
    assert plain.hist is None and repr(plain.floats()) == repr(found.floats())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_counts_on_an_accelerator_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    """The function runs on any device. Subnormals of float64 are not told apart there."""
    x = wild(dtype)
    if dtype is torch.float64:
        x = x[(x == 0) | ~(x.abs() < torch.finfo(dtype).smallest_normal)]
    found, expected = histograms.from_device(histograms.device_counts(x).tolist()), of(x).hist
    assert expected and found == expected.with_linear() and found != expected


class Operators(TorchDispatchMode):
    """The names of the operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(operator._schema.name.removeprefix("aten::"))
        return operator(*args, **(kwargs or {}))


def test_a_program_that_asks_for_deterministic_algorithms_is_not_stopped() -> None:
    """PyTorch lists in `torch.use_deterministic_algorithms` what fails then on an accelerator."""
    listed = torch.use_deterministic_algorithms.__doc__.split("operations will throw a")[1].partition("In addition")[0]
    refused = set(re.findall(r"`torch\.(?:Tensor\.)?(\w+)`", listed))
    assert {"histc", "bincount", "put_", "scatter_reduce"} <= refused
    x = wild(torch.float32)
    with Operators() as ran:
        tensor_stats._device_rows(x, hist=True)
        distance._device_rows(x, x + 1)
    assert {"searchsorted", "abs"} <= {name.partition(".")[0] for name in ran.names}
    assert not refused & {name.partition(".")[0] for name in ran.names}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1, 2, 3, 200]).to(dtype)
    assert bins(of(x).hist) == counted(x)


@pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])
def test_the_elements_outside_of_a_format_are_those_that_pytorch_converts_to_nothing(form: Any) -> None:
    edges = [math.nextafter(form.most, math.inf), form.most, math.nextafter(form.most, 0.0), 2.0 ** (form.least - 1)]
    near = torch.tensor([s * e * f for s, e, f in itertools.product((1, -1), edges, (0.5, 0.999, 1.0, 1.001, 2.0))])
    x = torch.cat([near.float(), wild(torch.float32)])
    converted = x.to(_TYPES[form.name]).float()
    # Some releases of PyTorch convert what is too large for float8_e4m3fn to its largest number, others to NaN.
    most = torch.finfo(_TYPES[form.name]).max
    saturated = (converted.abs() == most) & (x.abs() > form.most if form.beyond else x.abs() >= form.most)
    lost = x.isfinite() & (~converted.isfinite() | saturated | ((converted == 0) & (x != 0)))
    half = 2.0 ** (form.least - 1)  # rounds to 0, as the even one of its neighbours
    assert of(x).of_histogram(f"outside_{form.name}") == int((lost & (x.abs() != half)).sum())


@pytest.mark.sweep
def test_parts_merge_exactly() -> None:
    x = wild(torch.float32, CHUNK + 5000)
    assert of(x).hist == TensorStats.merge(map(of, x.split(30_000))).hist
    assert bins(of(x).hist) == counted(x)
    assert TensorStats.merge([of(x), stats(x)]).hist is None
    older = replace(of(x), hist=of(x).hist.with_linear())
    assert TensorStats.merge([of(x), older]).hist == Histogram.merge([of(x).hist, of(x).hist]).with_linear()
    assert TensorStats.merge([of(x), stats(torch.zeros(3))]).hist == of(x).hist  # zeros need none


def test_quantiles_lie_within_their_powers_of_two() -> None:
    x = torch.randn(20_001, generator=torch.Generator().manual_seed(1)) * 3
    x[::3] = 0.0
    found = of(x)
    for key, share in (("p1", 0.01), ("p50", 0.5), ("p99", 0.99)):
        exact, own = float(np.quantile(x.double().numpy(), share)), found.of_histogram(key)
        assert own is not None and np.sign(own) == np.sign(exact) and abs(exact) / 2 <= abs(own) <= 2 * abs(exact)
    one = of(torch.tensor([2.5]))
    assert [one.of_histogram(key) for key in ("p1", "p50", "p99")] == [2.5, 2.5, 2.5]
    assert of(torch.tensor([math.nan])).of_histogram("p50") is None


def test_scaling_by_powers_of_two_moves_the_bins() -> None:
    x = torch.tensor([1.0, -3.0, 1000.0])
    assert of(x).scaled(2.0**-4).hist == of(x * 2.0**-4).hist
    assert of(x).scaled(0.3).hist is None


def test_json_and_back() -> None:
    row = Row({"fqn": "a"}, of(wild(torch.float32)))
    report = Report("activations", "Net", (), [row])
    found = Report.from_dict(json.loads(json.dumps(report.to_dict()))).rows[0]
    assert found.stats is not None and row.stats is not None and found.stats.hist == row.stats.hist
    with pytest.raises(ValueError, match="hist can't be"):
        Row.from_flat({**row.flat(), "hist": {"low": 0, "negative": [1], "positive": [], "overflows": [0] * 4}})


def test_bins_that_end_beyond_the_largest_float() -> None:
    """As the last bin of float64 does: its end is the largest float, in quantiles, bars and charts alike."""
    found = of(torch.tensor([1e-3, 1.7e308, -1.5e308, 1.6e308], dtype=torch.float64))
    for key, element in (("p1", -1.5e308), ("p50", 1e-3), ("p99", 1.7e308)):
        quantile = found.of_histogram(key)
        assert quantile is not None and 0.5 < quantile / element < 2  # to within a bin
    assert found.hist is not None
    bars = distributions.fitted(found, 8)
    assert (bars[0].low, bars[-1].high) == (-1.5e308, 1.7e308) and sum(bar.elements for bar in bars) == 4
    limits, counts = series.buckets({"hist": found.hist.to_dict(), "zeros": 0}, 512)
    assert limits == sorted(limits) and limits[-1] == sys.float_info.max and sum(counts) == 4

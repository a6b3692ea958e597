"""Counts in bins of equal width, against numpy's histograms in float64."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensors.test_histograms import of, wild
from torch import Tensor

from hookcli.table import TensorStats
from hookcli.table.histogram import LINEAR, Histogram
from hookcli.tensors import histograms


def values_of(kind: str) -> Tensor:
    """Values as models have them."""
    generator = torch.Generator().manual_seed(4)
    normal = torch.randn(20_000, generator=generator)
    return {
        "around 0": normal,
        "around 10": normal + 10,
        "around -10": normal.double() - 10,
        "uniform": torch.rand(20_000, generator=generator) * 3 - 1,
        "two humps": torch.where(normal > 0.3, normal + 4, normal - 4),
        "after ReLU": normal.relu(),
        "float16": normal.half(),
        "bfloat16": normal.bfloat16(),
        "float16 subnormals": (normal * 2.0**-20).half(),
        "float32 subnormals": normal * 2.0**-140,
        "float32 at the edge of subnormals": normal * 2.0**-126,
        "float64 subnormals": normal.double() * 2.0**-1060,
        "the smallest": torch.tensor([5e-324, -1e-323, 1.5e-323], dtype=torch.float64),
        "the largest": torch.tensor([1.7e308, -1e308, 3e307], dtype=torch.float64),
        "outliers": torch.cat([normal, torch.tensor([3000.0, -200.0])]),
        "not finite": torch.cat([normal, torch.tensor([math.nan, math.inf, -math.inf, -0.0])]),
        "integers": torch.arange(-100, 40),
        "with gaps": normal.view(100, 200).t()[:, ::3],
        "wild": wild(torch.float32),
    }[kind]


VALUES = pytest.mark.parametrize(
    "kind",
    [
        *("around 0", "around 10", "around -10", "uniform", "two humps", "after ReLU", "float16", "bfloat16"),
        *("float16 subnormals", "float32 subnormals", "float32 at the edge of subnormals", "float64 subnormals"),
        *("the smallest", "the largest", "outliers", "not finite", "integers", "with gaps", "wild"),
    ],
)


def linear(found: Histogram | None) -> list[list[int]]:
    """The counts in bins of equal width, negative and positive."""
    assert found is not None
    return [[*side] or [0] * LINEAR for side in (found.linear_negative, found.linear_positive)]


def by_numpy(x: Tensor) -> list[list[int]]:
    """The same by numpy: of magnitudes in units of the smallest power of two above them, so that edges are exact."""
    values = x.double().numpy().ravel()
    values = values[np.isfinite(values) & (values != 0)]
    units = np.ldexp(values, -int(np.frexp(np.abs(values).max())[1]))
    sides = (-units[units < 0], units[units > 0])
    return [np.histogram(side, LINEAR, (0.0, 1.0))[0].tolist() for side in sides]


@VALUES
def test_counts_in_bins_of_equal_width_are_numpys(kind: str) -> None:
    x = values_of(kind)
    assert linear(of(x).hist) == by_numpy(x)
    assert histograms.histogram(x.flatten()) == of(x).hist  # without the library
    parts = TensorStats.merge(map(of, x.flatten().split(max(x.numel() // 7, 1))))
    assert parts.hist == of(x).hist
    for threads in (1, 3):
        many = x.flatten().repeat(20)  # which threads share
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            assert linear(of(many).hist) == [[20 * n for n in side] for side in by_numpy(x)]
        finally:
            torch.set_num_threads(before)


@VALUES
def test_quantiles_lie_within_their_cells(kind: str) -> None:
    x = values_of(kind)
    found, values = of(x), np.sort(x.double().numpy().ravel())
    values = values[np.isfinite(values)]
    assert found.hist is not None
    cells = found.hist.cells(found.zeros)
    assert sum(count for *_, count in cells) == found.finite
    assert all(low <= high for low, high, _ in cells) and all(a[1] <= b[0] for a, b in itertools.pairwise(cells))
    for key, share in (("p1", 0.01), ("p50", 0.5), ("p99", 0.99)):
        exact = values[int(share * (len(values) - 1))]
        holds = [
            low <= exact < high if exact > 0 else low < exact <= high or low == exact == high for low, high, _ in cells
        ]
        low, high, _ = cells[holds.index(True)]
        own = found.of_histogram(key)
        assert own is not None and low <= own <= high, (key, exact, own)


def test_a_median_far_from_0_is_closer_than_by_powers_of_two() -> None:
    found, exact = of(values_of("around 10")), float(values_of("around 10").median())
    assert found.hist is not None and found.of_histogram("p50") == pytest.approx(exact, abs=0.25)
    older = replace(found, hist=found.hist.with_linear())
    assert abs(older.of_histogram("p50") or math.inf) - exact > 0.5  # of 8 to 16


@pytest.mark.parametrize(
    "change",
    [
        {"linear_negative": [1]},
        {"linear_positive": [0] * LINEAR},
        {"linear_positive": [2, *[0] * (LINEAR - 2), -1]},
        {"linear_positive": [1.0, *[0] * (LINEAR - 1)]},
        {"linear_negative": [1, *[0] * (LINEAR - 1)]},
        {"positive": [1, 0], "negative": [0, 0]},
        {"linear_positive": "1"},
        {"negative": [], "positive": [], "linear_positive": [0] * LINEAR},
    ],
)
def test_counts_in_bins_of_equal_width_must_fit_the_others(change: dict[str, object]) -> None:
    """Files of an older hookcli have none."""
    found = of(torch.tensor([1.5])).hist
    assert found is not None
    data = found.to_dict()
    older = {key: value for key, value in data.items() if not key.startswith("linear")}
    assert Histogram.from_dict(data) == found and Histogram.from_dict(older) == found.with_linear()
    with pytest.raises(ValueError, match="hist can't be"):
        Histogram.from_dict({**data, **change})
    with pytest.raises(ValueError, match="hist can't be"):
        Histogram.from_dict({key: value for key, value in data.items() if key != "linear_negative"})

"""Distances beside float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hookcli.distance import Distance, measure_distance, resolve_distances
from hookcli.stats import CPU_BLOCK


def taken(found: Tensor, exact: Tensor) -> Distance:
    return resolve_distances([measure_distance(found, exact)])[0]


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e-30, 1e25])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float16", "float32"), ("float64", "float64")], ids=str)
def test_like_float64(scale: float, dtypes: tuple[str, str]) -> None:
    """Over several blocks, also where float32 squares under- and overflow."""
    if scale != 1 and "float16" in dtypes:
        pytest.skip("float16 holds no such values")
    torch.manual_seed(0)
    exact = torch.randn(2 * CPU_BLOCK + 7, dtype=torch.float64) * scale
    noisy = exact * (1 + 1e-3 * torch.randn_like(exact))
    found, exact = (x.to(getattr(torch, name)) for x, name in zip((noisy, exact), dtypes, strict=True))
    distance = taken(found, exact)
    difference = found.double() - exact.double()
    assert distance.exact_l2 == pytest.approx(exact.double().norm().item(), rel=1e-5)
    assert distance.error_l2 == pytest.approx(difference.norm().item(), rel=1e-5)
    assert distance.error_max == pytest.approx(difference.abs().max().item(), rel=1e-6)


def test_equal_empty_complex_and_not_finite() -> None:
    x = torch.tensor([3.0, 4.0])
    assert taken(x.clone(), x) == Distance(5, 0, 0)
    assert taken(torch.empty(0), torch.empty(0)) == Distance(0, 0, 0)
    assert taken(torch.tensor([3j]), torch.tensor([4 + 0j])) == Distance(4, 5, 4)
    assert taken(torch.tensor([math.inf, 4]), x).error_max == math.inf
    assert math.isnan(taken(torch.tensor([math.nan, 4]), x).error_max)


def test_the_way_of_an_accelerator_gives_the_same() -> None:
    """Its block is run on the CPU, where there is no accelerator."""
    from hookcli.distance import PendingDistance, _device_block

    found, exact = torch.tensor([1.0, 2.0, -5.0]), torch.tensor([1.5, 2.0, 3.0])
    [there] = resolve_distances([PendingDistance(torch.stack([_device_block(found, exact)]))])
    assert there == taken(found, exact)

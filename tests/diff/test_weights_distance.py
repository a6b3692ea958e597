"""Distances of stored tensors are those of the tensors themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hookcli.diff.weights.pairs import distance, same_bytes
from hookcli.table.stats import agree
from hookcli.tensors import distance as tensor_distance
from hookcli.tensors.files.pytorch import stored

ANY = torch.Generator().manual_seed(0)
PAIRS = {
    "float32": torch.randn(2, 1000, generator=ANY).unbind(),
    "far": (torch.randn(100, generator=ANY).double() * 1e200, torch.randn(100, generator=ANY).double() * 1e-200),
    "complex": torch.randn(2, 50, dtype=torch.complex64, generator=ANY).unbind(),
    "nonfinite": (
        torch.tensor([1.0, math.nan, math.inf, -math.inf, math.nan]),
        torch.tensor([2.0, math.nan, math.inf, 1.0, 0.0]),
    ),
    "zero": (torch.zeros(4), torch.ones(4)),
    "infinities": (torch.tensor([math.inf, -math.inf, 1.0]), torch.tensor([1.0, 2.0, 3.0])),
    "columns": torch.randn(1000, 2, generator=ANY).unbind(1),
    "complex columns": torch.randn(50, 2, dtype=torch.complex64, generator=ANY).unbind(1),
    "integers": (torch.arange(9), torch.arange(9).flip(0)),
}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", PAIRS)
def test_distances_are_those_of_tensors(name: str) -> None:
    a, b = PAIRS[name]
    told: list[int] = []
    found = distance(stored("x", a), stored("x", b), told.append).figures()
    pending = tensor_distance.compare(a, b)
    assert pending is not None and sum(told) == pytest.approx(b.nbytes, abs=1)
    expected = tensor_distance.resolve([pending])[0].figures()
    assert found.keys() == expected.keys()
    assert found.pop("cosine") == pytest.approx(expected.pop("cosine"), abs=1e-6, nan_ok=True)  # it may be near 0
    assert all(agree(found[key], expected[key], 1e-5) for key in found), (found, expected)
    assert np.isfinite(found["max_abs"]) or name in ("nonfinite", "infinities")
    assert same_bytes(stored("x", a), stored("x", a.clone())) and not same_bytes(stored("x", a), stored("x", b))

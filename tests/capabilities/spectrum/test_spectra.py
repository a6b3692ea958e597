"""Singular values and ranks of stored matrices, held against SVD."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hookcli.tensors.files.pytorch import stored
from hookcli.tensors.files.statistics import low_rank, spectrum

MATRICES: dict[str, Callable[[], Tensor]] = {
    "random": lambda: torch.randn(90, 70),
    "wide": lambda: torch.randn(20, 400),
    "convolution": lambda: torch.randn(16, 8, 3, 3),
    "rank 1": lambda: torch.outer(torch.randn(30), torch.randn(40)),
    "diagonal": lambda: torch.diag(torch.arange(1, 60).float()),
    "one row": lambda: torch.randn(1, 50),
    "bfloat16": lambda: torch.randn(64, 64).bfloat16(),
    "huge": lambda: torch.randn(30, 40) * 1e37,
    "tiny": lambda: torch.randn(30, 40, dtype=torch.float64) * 1e-100,
}


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("name", MATRICES)
def test_spectra_against_svd(name: str, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcli.tensors.files.statistics._HELD", 1 << 26 if held else 0)
    monkeypatch.setattr("hookcli.tensors.files.stored.BLOCK", 500)  # several blocks of rows
    torch.manual_seed(0)
    x = MATRICES[name]()
    tensor = stored("x", x)
    found = spectrum(tensor.rows, tensor.columns)
    values = torch.linalg.svdvals(x.flatten(1).double())
    assert found is not None and found.converged
    assert found.norm == pytest.approx(values[0].item(), rel=5e-4)
    assert found.stable_rank == pytest.approx(((values**2).sum() / values[0] ** 2).item(), rel=1e-3)


def test_a_matrix_without_singular_values() -> None:
    zero = stored("x", torch.zeros(3, 4))
    found = spectrum(zero.rows, zero.columns)
    assert found is not None and found.norm == 0 and math.isnan(found.stable_rank)
    bad = stored("x", torch.tensor([[1.0, math.nan]]))
    assert spectrum(bad.rows, bad.columns) is None


@pytest.mark.parametrize(("rank", "found"), [(1, 1), (8, 8), (64, 64), (70, None)])
def test_rank_of_a_change(rank: int, found: int | None) -> None:
    torch.manual_seed(0)
    change = stored("x", torch.randn(300, rank) @ torch.randn(rank, 280))
    energy = sum(float((block**2).sum()) for block in change.values())
    low = low_rank(change.rows, change.columns, energy, rounding=0.0, most=75)
    assert (low and low.rank) == found
    assert low is None or low.share == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("side", [1, 2, 3, 7, 40])
def test_small_matrices_have_their_largest_value_and_no_other(side: int) -> None:
    """Lanczos from one start took the second for the first in two of a thousand of these."""
    generator = torch.Generator().manual_seed(side)
    for number in range(600 // side):
        rows = int(torch.randint(1, 2 * side + 1, (), generator=generator))
        x = torch.randn(rows, side, generator=generator, dtype=torch.float64)
        if number % 2:  # two values near to each other, the rest far below
            u, values, v = torch.linalg.svd(x, full_matrices=False)
            values = values * 0.1 + torch.tensor([10.0, 9.5, *[0.0] * len(values)], dtype=torch.float64)[: len(values)]
            x = u * values @ v
        tensor = stored("x", x)
        found = spectrum(tensor.rows, tensor.columns)
        exact = torch.linalg.svdvals(x)
        assert found is not None and found.norm == pytest.approx(exact[0].item(), rel=1e-9)
        assert found.stable_rank == pytest.approx(((exact / exact[0]) ** 2).sum().item(), rel=1e-9)


def test_a_start_that_lacks_the_first_direction() -> None:
    """The iteration starts from what NumPy draws first: here that has a millionth of the first singular vector."""
    import numpy as np

    n = 300
    start = torch.from_numpy(np.random.default_rng(0).standard_normal(n))
    basis = torch.linalg.qr(torch.cat([start[:, None], torch.randn(n, n - 1, dtype=torch.float64)], 1)).Q
    first, second = basis[:, 1] + 1e-4 * basis[:, 0], basis[:, 0]
    x = 10 * torch.outer(first, first) + 9.5 * torch.outer(second, second) + 0.01 * torch.randn(n, n).double()
    tensor = stored("x", x)
    found = spectrum(tensor.rows, tensor.columns)
    assert found is not None and found.converged
    assert found.norm == pytest.approx(torch.linalg.svdvals(x)[0].item(), rel=5e-4)

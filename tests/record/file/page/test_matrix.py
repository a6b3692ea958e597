"""Figures of a page have four digits, as tables have them, and take few bytes."""

from __future__ import annotations

import math

import numpy as np
import paged
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookcli.record.file.page.rounded import Rounded, packed_counts

EDGES = [0.0, 1.0, -1.0, 9999.6, 0.99996, 1e-300, 123456.0, 1e-7, math.nan, math.inf]

NUMBERS = st.floats(-1e307, 1e307).filter(lambda x: x == 0 or abs(x) > 1e-300)


def packed(values: list[float | None], *, coarse: bool = False) -> list[float | None]:
    known = np.array([value is not None for value in values], np.bool_)
    found = Rounded.of(np.array([value or 0.0 for value in values], np.float64), known)
    return paged.figures((found.coarser() if coarse else found).packed())


@pytest.mark.sweep
@settings(max_examples=80)
@given(
    st.lists(st.none() | st.floats(-1e307, 1e307).filter(lambda x: x == 0 or abs(x) > 1e-300), min_size=1, max_size=20)
)
def test_figures_are_as_near_as_four_digits_can_be_or_three(values: list[float | None]) -> None:
    values = [*values, *EDGES, -math.inf, None]
    for value, fine, coarse in zip(values, packed(values), packed(values, coarse=True), strict=True):
        if value is None or not math.isfinite(value):
            assert str(fine) == str(coarse) == str(value)
            continue
        assert fine is not None and coarse is not None
        assert abs(fine - value) <= 0.5001e-3 * abs(value) and abs(coarse - value) <= 0.56e-2 * abs(value)


def test_figures_are_those_that_tables_write() -> None:
    values = np.random.default_rng(0).lognormal(0, 20, 500).tolist()
    assert packed(values) == [float(f"{value:.3e}") for value in values]


def test_counts_are_exact() -> None:
    counts = np.array([0.0, 3.0, 2.0**40 + 1, math.nan])
    assert paged.counts(packed_counts(counts)) == [0, 3, 2**40 + 1, None]


def test_like_figures_take_little_room() -> None:
    steps = np.linspace(1.0, 1.001, 1000)
    matrix = np.tile(steps, (100, 1))
    assert len(Rounded.of(matrix, np.ones_like(matrix, np.bool_)).packed()) < 10_000

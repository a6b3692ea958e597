"""The search for the largest batch, on peaks that are known as formulas."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from hookcli.engine.batch_search import MOST, BatchSearch


def test_a_straight_line_takes_four_simulations() -> None:
    search = BatchSearch(lambda batch: 400 + 95 * batch, 24_000)
    assert search.largest() == 248 and [*search.peaks] == [1, 2, 248, 249]
    search = BatchSearch(lambda batch: max(2000 + batch // 2, 400 + 95 * batch), 24_000)  # an optimizer's peak first
    assert search.largest() == 248 and [*search.peaks] == [1, 2, 128, 264, 248, 249]


def test_nothing_fits_and_everything_fits() -> None:
    assert BatchSearch(lambda batch: 400 + batch, 400).largest() == 0
    assert BatchSearch(lambda batch: 400, 400).largest() == MOST
    search = BatchSearch(lambda batch: 400 + batch, 401)
    assert search.largest(lowest=2) == 0 and [*search.peaks] == [2]


@pytest.mark.parametrize("seed", range(3))
def test_the_answer_and_the_next_batch_are_measured(seed: int) -> None:
    """The peak is the highest of several phases, each of which grows with the batch in its own way."""
    random = Random(seed)
    for _ in range(300):
        search = BatchSearch(_peaks(random), random.randint(0, 3 * 10**10))
        lowest = random.choice([1, 2])
        largest = search.largest(lowest)
        assert not largest or search.peaks[largest] <= search.limit
        if largest < MOST:
            assert search.peaks[largest + 1 if largest else lowest] > search.limit
        assert len(search.peaks) <= 32


def _peaks(random: Random) -> Callable[[int], int]:
    phases = [(random.randint(0, 10**10), random.choice([0, random.randint(1, 10**8)])) for _ in range(4)]
    return lambda batch: max(fixed + slope * batch for fixed, slope in phases)

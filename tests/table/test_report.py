"""TensorStats merge exactly; reports go to strict JSON and back."""

from __future__ import annotations

import json
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import assert_stats, float64_stats

from hookcli.table import STATS_COLUMNS, Column, Finding, Reason, Report, Row, Skipped, TensorStats, document
from hookcli.tensors.stats import stats


@pytest.mark.sweep
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    mean=st.sampled_from([0.0, 1.0, 1e4, -1e6]),
    spread=st.sampled_from([1.0, 1e-2, 100.0]),
    bad=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_merge_equals_the_concatenation(sizes: list[int], mean: float, spread: float, bad: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [mean + spread * torch.randn(n, generator=generator, dtype=torch.float64) for n in sizes]
    if bad and len(parts[0]) > 2:
        parts[0][:3] = torch.tensor([math.nan, math.inf, 0.0])
    merged = TensorStats.merge(stats(part) for part in parts)
    # float64 itself holds a spread of 0.01 about a million to eight digits
    assert_stats(merged, float64_stats(torch.cat(parts)), rel=1e-7)


def test_merge_is_not_an_average_of_averages() -> None:
    merged = TensorStats.merge([stats(torch.tensor([0.0, 0.0, 0.0])), stats(torch.tensor([4.0]))])
    assert (merged.mean, merged.std, merged.l2, merged.zeros) == (1.0, 2.0, 4.0, 3)


def test_a_part_without_finite_elements_adds_its_counts_alone() -> None:
    whole, broken = TensorStats(2, 3.0, 1.5, 2.0, 4.0, 5.0, zeros=1), TensorStats(3, l2=math.nan, nan=1, inf=2)
    for parts in ([whole, broken], [broken, whole]):
        assert TensorStats.merge(parts) == TensorStats(5, 3.0, 1.5, 2.0, 4.0, 5.0, zeros=1, nan=1, inf=2)
    both = TensorStats.merge([broken, broken])
    assert (both.numel, both.nan, both.inf) == (6, 2, 4)
    assert all(math.isnan(getattr(both, key)) for key in ("mean", "std", "min", "max", "l2"))


def test_merge_of_nothing_is_empty() -> None:
    nothing = TensorStats.merge([])
    assert nothing.numel == 0 and math.isnan(nothing.l2) and math.isnan(nothing.mean)


REPORT = Report(
    probe="activations",
    model="net",
    columns=(Column("fqn", "Layer"), *STATS_COLUMNS),
    rows=(
        Row({"fqn": "a", "shape": [2, 3]}, TensorStats(6, 0.5, 1.0, -math.inf, math.inf, 2.0, nan=1, inf=2)),
        Row({"fqn": "b", "shape": []}, TensorStats(0)),
    ),
    meta={"torch": "2.15", "complete": True, "seconds": 0.25},
    totals={"rows": 2},
    skipped=(Skipped("c", "never called", kind=Reason.NEVER_CALLED), Skipped("d", "got no gradient", "[0]")),
    findings=(Finding("HK001", "error", "a", "1 NaN", 1.0, 0.0),),
)


def test_json_is_strict_and_comes_back() -> None:
    text = json.dumps(document([REPORT]), allow_nan=False)
    data = json.loads(text)
    assert data["schema"] == 1
    row = data["reports"][0]["rows"][0]
    assert (row["min"], row["max"], row["nan"]) == ("-Infinity", "Infinity", 1)
    again = Report.from_dict(data["reports"][0])
    assert again.to_dict().keys() == REPORT.to_dict().keys()
    assert json.dumps(document([again])) == text
    assert again.rows[0].stats == REPORT.rows[0].stats
    assert again.skipped == REPORT.skipped and again.findings == REPORT.findings


def test_a_report_is_pickled_with_its_columns() -> None:
    """As programs send it to another process."""
    again = pickle.loads(pickle.dumps(REPORT))
    assert again.columns == REPORT.columns and repr(again.to_dict()) == repr(REPORT.to_dict())


def test_a_row_reads_the_same_with_and_without_statistics() -> None:
    row = REPORT.rows[0]
    assert row.fqn == "a" and row["mean"] == 0.5 and row["shape"] == [2, 3] and row.get("macs") is None
    assert Row.from_flat(row.flat()) == row

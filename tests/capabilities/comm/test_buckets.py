"""Rows of buckets, and ranks put together, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from records import recorded_step

from hookcli.capabilities.comm.buckets import bucket_row, merge_ranks, totals
from hookcli.capabilities.comm.layout import COLUMNS
from hookcli.record.file.ranks.merged_step import merge_steps
from hookcli.reporters.table import TableReporter, View
from hookcli.table import Report, Row, TensorStats, document
from hookcli.table.grouping import group_rows
from hookcli.table.ranks import common_meta
from hookcli.tensors.stats import stats


def row(after: list[float], exact: list[float], handed: int | None = 8, seconds: float = 0.1, **where: object) -> Row:
    """A bucket of two elements."""
    import torch

    found, mean = torch.tensor(after, dtype=torch.float64), torch.tensor(exact, dtype=torch.float64)
    errors = (mean.norm().item(), (found - mean).norm().item(), (found - mean).abs().max().item())
    place = {"hook": "h", "step": 0, "bucket": 0, "order": 0, "params": 1, "fqns": ["w"], "elements": 2} | where
    return bucket_row(place | {"bytes_before": 16, "seconds": seconds}, handed, stats(mean), stats(found), errors)


def report(*rows: Row) -> Report:
    return Report("comm", "net", COLUMNS, rows, {"complete": True}, totals(rows), grouping="steps")


def test_a_row_by_hand() -> None:
    found = row([3.0, 0.0], [3.0, 4.0])
    assert (found["ratio"], found["relative_l2"], found["error_max"]) == (0.5, 4 / 5, 4)
    assert found["cosine"] == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("after", "exact", "relative", "cosine"),
    [
        ([0, 0], [0, 0], 0, math.nan),
        ([1, 0], [0, 0], math.inf, math.nan),
        ([0, 0], [3, 4], 1, math.nan),
        ([-3, -4], [3, 4], 2, -1),
        ([math.inf, 4], [3, 4], math.inf, math.nan),
    ],
)
def test_what_has_no_angle(after: list[float], exact: list[float], relative: float, cosine: float) -> None:
    found = row(after, exact)
    assert found["relative_l2"] == relative and found["cosine"] == pytest.approx(cosine, nan_ok=True)


def test_ranks_are_merged_as_one_long_bucket() -> None:
    ranks = [report(row([3.0, 0.0], [3.0, 4.0], seconds=0.1)), report(row([0.0, 4.0], [3.0, 4.0], seconds=0.3))]
    merged = merge_ranks(ranks)
    [found] = merged.rows
    # after (3, 0, 0, 4), exact (3, 4, 3, 4), difference (0, 4, 3, 0)
    assert found["relative_l2"] == pytest.approx(5 / math.sqrt(50)) and found["error_max"] == 4
    assert found["cosine"] == pytest.approx(25 / (5 * math.sqrt(50)))
    assert found.stats is not None and found.stats.numel == 4 and found["seconds"] == 0.3
    assert (found["bytes_before"], found["bytes_after"], found.get("note")) == (16, 8, None)
    assert merged.totals["hooks"]["h"]["relative_l2"] == found["relative_l2"]


def test_ranks_that_differ_in_bytes_are_told_and_unknown_ones_stay_unknown() -> None:
    def of(*handed: int | None) -> Row:
        [found] = merge_ranks([report(row([1, 1], [1, 1], n)) for n in handed]).rows
        return found

    assert (of(8, 4)["bytes_after"], of(8, 4)["note"]) == (8, "ranks hand over 4 to 8 bytes")
    assert of(8, None)["bytes_after"] is None and of(8, None)["ratio"] is None
    assert merge_ranks([report(row([1, 1], [1, 1], None))]).totals["hooks"]["h"]["ratio"] is None


@pytest.mark.parametrize(
    ("losses", "mean"),
    [((1.0, 2.0), 1.5), ((math.inf, -math.inf), math.nan), ((math.inf, 1.0), math.inf), ((1.5e308, 1.6e308), math.inf)],
)
def test_losses_of_ranks_that_have_no_finite_mean(losses: tuple[float, float], mean: float) -> None:
    found = [replace(report(row([1, 1], [1, 1])), meta={"loss_value": loss}) for loss in losses]
    assert merge_ranks(found).meta["loss_value"] == pytest.approx(mean, nan_ok=True)
    assert common_meta(dict(enumerate(found)))["loss_value"] == pytest.approx(2 * mean, nan_ok=True)
    steps_of_ranks = {rank: recorded_step(0, losses=[loss]) for rank, loss in enumerate(losses)}
    assert merge_steps(steps_of_ranks).losses == pytest.approx([mean], nan_ok=True)


def steps(*names: list[list[str]]) -> Report:
    """A report whose steps have these buckets."""
    places = [(n, i, fqns) for n, buckets in enumerate(names) for i, fqns in enumerate(buckets)]
    return report(*(row([1, 2], [1, 2], step=n, bucket=i, fqns=fqns) for n, i, fqns in places))


def test_the_table_shows_the_last_step_and_a_first_one_with_other_buckets() -> None:
    same = steps([["a", "b"]], [["b", "a"]], [["b", "a"]])
    other = steps([["a", "b"]], [["b"], ["a"]], [["b"], ["a"]])
    assert [r["step"] for r in group_rows(same, 1).rows] == [2]
    assert [r["step"] for r in group_rows(other, 1).rows] == [0, 2, 2]
    assert group_rows(other, math.inf).rows == other.rows
    text = TableReporter().render([other], View())
    assert "2 of 5 rows hidden, of other steps (--depth all shows all)" in text
    assert "h, all buckets of step 2: 32 B to 16 B, error 0, cosine 1.000" in text


def test_to_json_and_back() -> None:
    whole = report(row([math.inf, 4], [3, 4]))
    assert Report.from_dict(document([whole])["reports"][0]).rows[0]["error_max"] == math.inf
    assert isinstance(whole.rows[0].stats, TensorStats)

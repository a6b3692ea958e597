"""Reports of ranks become one: against statistics of the concatenated tensors, computed in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_stats, float64_stats

from hookcli.engine.ranks.gather import pack, unpack
from hookcli.report import STATS_COLUMNS, Column, Report, Row, Skipped, TensorStats, ranks
from hookcli.tensors.stats import stats

COLUMNS = (Column("fqn", "Layer"), Column("path", "Path"), Column("shape", "Shape"), *STATS_COLUMNS)


def row(fqn: str, tensor: torch.Tensor, **values) -> Row:
    return Row({"fqn": fqn, "path": "", "shape": list(tensor.shape), **values}, stats(tensor))


def report(*rows: Row, **settings_) -> Report:
    return Report(
        "activations", "net", COLUMNS, rows, settings_.pop("meta", {"seconds": 1.0}), {"rows": len(rows)}, **settings_
    )


def parts_of(*tensors: torch.Tensor, **values) -> dict[int, Report]:
    return {rank: report(row("a", tensor, **values)) for rank, tensor in enumerate(tensors)}


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([0.0, 1e4]), st.booleans())
def test_the_parts_of_a_batch_are_merged_exactly(size, count, offset, holes) -> None:
    torch.manual_seed(size * 10 + count)
    whole = torch.randn(size * count, 3) + offset
    if holes:
        whole[0, 0], whole[-1, -1] = math.nan, math.inf
    found = ranks.merged(parts_of(*whole.chunk(count)), report(row("a", whole))).rows[0]
    assert found["shape"] == list(whole.shape)
    assert_stats(found.stats, float64_stats(whole))


def test_without_the_whole_tensors_grow_along_dimension_0_and_gradients_of_parameters_do_not() -> None:
    halves = torch.randn(4, 3).chunk(2)
    assert ranks.merged(parts_of(*halves)).rows[0]["shape"] == [4, 3]
    same = torch.randn(2, 3)
    found = ranks.merged(parts_of(same, same.clone(), kind="parameter")).rows[0]
    assert found["shape"] == [2, 3] and found.stats == stats(same)


def test_the_whole_tells_which_dimension_grows() -> None:
    whole = torch.randn(5, 4, 3)
    found = ranks.merged(parts_of(*whole.chunk(2, dim=1)), report(row("a", whole))).rows[0]
    assert found["shape"] == [5, 4, 3]
    assert_stats(found.stats, float64_stats(whole))


def test_what_does_not_grow_with_the_batch_counts_once_if_the_ranks_agree() -> None:
    table = torch.randn(3, 2)
    merged = ranks.merged(parts_of(table, table.clone()), report(row("a", table)))
    assert merged.rows[0]["shape"] == [3, 2] and merged.rows[0].stats == stats(table) and not merged.skipped
    differing = ranks.merged(parts_of(table, table + 1), report(row("a", table)))
    assert_stats(differing.rows[0].stats, float64_stats(torch.cat([table, table + 1])))
    assert differing.skipped == [Skipped("a", "does not grow with the batch, and each rank has another")]


def test_a_gradient_that_is_a_sum_over_ranks_has_no_row() -> None:
    table = torch.randn(3, 2)
    merged = ranks.merged(parts_of(table, table, kind="output"), report(row("a", table, kind="output")))
    assert not merged.rows and "sum over ranks" in merged.skipped[0].reason and merged.totals == {"rows": 0}


def test_shards_are_put_together_and_keep_the_shape_of_the_whole() -> None:
    whole = torch.randn(5, 3)
    shards = [Row({"fqn": "a", "shape": [5, 3], "sharded": True}, stats(part)) for part in whole.split(3)]
    found = ranks.merged({rank: report(shard) for rank, shard in enumerate(shards)}).rows[0]
    assert found["shape"] == [5, 3] and "sharded" not in found.values
    assert_stats(found.stats, float64_stats(whole))


def test_an_empty_shard_adds_nothing() -> None:
    whole = torch.randn(1, 3)
    shards = [Row({"fqn": "a", "shape": [1, 3], "sharded": True}, stats(part)) for part in (whole, whole[:0])]
    found = ranks.merged({rank: report(shard) for rank, shard in enumerate(shards)}).rows[0]
    assert_stats(found.stats, float64_stats(whole))


def test_what_some_ranks_did_not_see_is_said() -> None:
    a, b = row("a", torch.ones(2)), row("b", torch.ones(2))
    parts = {0: report(a, skipped=[Skipped("c", "never called"), Skipped("b", "never called")]), 1: report(a, b)}
    parts[2] = parts[0]
    merged = ranks.merged(parts)
    assert {row.fqn for row in merged.rows} == {"a", "b"}
    assert [(item.fqn, item.reason) for item in merged.skipped] == [
        ("c", "never called (ranks 0, 2)"),
        ("b", "never called (ranks 0, 2)"),
        ("b", "not seen on ranks 0, 2"),
        ("", "the shapes of the whole batch: dimension 0 is taken for the batch everywhere"),
    ]


def test_the_time_is_the_slowest_ranks_and_the_loss_that_of_all_shares() -> None:
    metas = [
        {"seconds": s, "loss_value": v, "complete": c, "rank": r}
        for r, (s, v, c) in enumerate([(1.0, 2.0, True), (3.0, 0.5, False)])
    ]
    merged = ranks.merged({rank: report(row("a", torch.ones(2)), meta=meta) for rank, meta in enumerate(metas)})
    assert merged.meta == {"seconds": 3.0, "loss_value": 2.5, "complete": False}


def test_events_are_the_first_ranks() -> None:
    parts = {rank: report(Row({"fqn": str(rank)}), grouping="events") for rank in range(2)}
    merged = ranks.merged(parts)
    assert [row.fqn for row in merged.rows] == ["0"]


@pytest.mark.parametrize(
    ("tensors", "marks"),
    [
        ((torch.ones(4), torch.ones(4), torch.full((4,), 5.0)), (None, None, "5.000 times the others")),
        ((torch.ones(4), torch.ones(4), torch.tensor([1, 1, math.nan, 1])), (None, None, "NaN here alone")),
        ((torch.ones(4), torch.tensor([1, 1, math.inf, 1])), (None, "Inf here alone")),
        ((torch.ones(4), torch.ones(4), torch.ones(3)), (None, None, "shape 3")),
        ((torch.zeros(4), torch.zeros(4), torch.ones(4)), (None, None, "the others are zero")),
        ((torch.zeros(4), torch.zeros(4)), (None, None)),
        ((torch.full((4,), math.nan), torch.ones(4)), ("NaN here alone", None)),
        ((torch.full((4,), math.nan), torch.full((4,), math.nan)), (None, None)),
        ((torch.randn(1000), 1.5 * torch.randn(1000)), (None, None)),
    ],
)
def test_the_rank_that_deviates_is_marked(tensors, marks) -> None:
    beside = ranks.beside(parts_of(*tensors))
    assert [row["rank"] for row in beside.rows] == list(range(len(tensors)))
    assert tuple(row["deviates"] for row in beside.rows) == marks


def test_ranks_of_one_place_stand_beside_each_other() -> None:
    one = report(row("a", torch.ones(2)), row("b", torch.ones(2)))
    beside = ranks.beside({1: one, 3: one})
    assert [(row.fqn, row["rank"]) for row in beside.rows] == [("a", 1), ("a", 3), ("b", 1), ("b", 3)]
    assert beside.meta["rank"] == [1, 3] and beside.totals == {"rows": 4}


def test_a_packed_report_is_the_same_report() -> None:
    odd = TensorStats(7, math.nan, math.nan, math.nan, math.nan, 0.0, nan=5, inf=2)
    given = report(
        row("layer.0", torch.randn(3)),
        Row({"fqn": "ünï", "path": '["a"]', "shape": [[1], []]}, odd),
        Row({"fqn": "no statistics", "shape": None}),
        skipped=[Skipped("x", "why", "[0]")],
        grouping="disjoint",
    )
    known: dict = {}
    found = unpack(pack(given) + b"\0" * 9, known)
    assert repr(found.to_dict()) == repr(given.to_dict())
    assert len(known) == 1 and repr(unpack(pack(given), known).to_dict()) == repr(given.to_dict())


def test_a_row_of_a_report_travels_in_a_few_hundred_bytes() -> None:
    """72 of statistics, and its place, of which the names repeat."""
    rows = [row(f"layers.{n // 10}.mlp.{n % 10}", torch.ones(4), type="Linear", call=0, index=n) for n in range(1000)]
    assert 72_000 < len(pack(report(*rows))) < 100_000

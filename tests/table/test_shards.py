"""Parts of tensors that ranks hold, put together: shards of FSDP2 and tensor parallel."""

from __future__ import annotations

import torch
from support import assert_stats, float64_stats
from table.rank_reports import report, row

from hookcli.table import Report, Row, TensorStats
from hookcli.table.merged_ranks import SUMMED, merged
from hookcli.table.rank_table import CONSTANT, DIVIDED
from hookcli.tensors.stats import stats


def test_shards_are_put_together_and_keep_the_shape_of_the_whole() -> None:
    whole = torch.randn(5, 3)
    shards = [Row({"fqn": "a", "shape": [5, 3], "sharded": True}, stats(part)) for part in whole.split(3)]
    found = merged({rank: report(shard) for rank, shard in enumerate(shards)}).rows[0]
    assert found["shape"] == [5, 3] and "sharded" not in found.values
    assert_stats(found.stats, float64_stats(whole))


def test_an_empty_shard_adds_nothing() -> None:
    whole = torch.randn(1, 3)
    shards = [Row({"fqn": "a", "shape": [1, 3], "sharded": True}, stats(part)) for part in (whole, whole[:0])]
    found = merged({rank: report(shard) for rank, shard in enumerate(shards)}).rows[0]
    assert_stats(found.stats, float64_stats(whole))


def test_a_shard_that_several_ranks_hold_counts_once() -> None:
    """Replicas of shards, as FSDP2 has them on two dimensions of ranks (HSDP)."""
    whole = torch.randn(5, 3)
    copies = [(place, part) for _ in range(2) for place, part in enumerate(whole.split(3))]
    rows = [Row({"fqn": "a", "shape": [5, 3], "sharded": [place]}, stats(part)) for place, part in copies]
    found = merged({rank: report(each) for rank, each in enumerate(rows)})
    assert found.rows[0].stats and not found.skipped
    assert_stats(found.rows[0].stats, float64_stats(whole))


def test_tensor_parallel_times_data_parallel_counts_each_element_once() -> None:
    """Ranks 0 and 1 have the first half of the batch together, ranks 2 and 3 the second."""
    x, table = torch.randn(6, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)

    def of_rank(rank: int) -> Report:
        half, place, mesh = x.chunk(2)[rank // 2], rank % 2, [rank // 2 * 2, rank // 2 * 2 + 1]
        part, known = half.chunk(2, 1)[place], {"mesh": mesh, "shape": [3, 4]}
        rows = (
            row("copied", half),
            row("columns", part, **known, sharded=[place]),
            row("whole", half, **known),
            row("divided", part),
            row("table", table),
            row("zeros", torch.zeros(3, 2)),
            row("summand", half, **known, sharded=[place], partial=True),
            row("weight", table.chunk(2, 1)[place], kind="parameter", sharded=[place]),
            row("bias", table, kind="parameter"),
        )
        return report(*rows, meta={"tensor_parallel": mesh})

    found = merged({rank: of_rank(rank) for rank in range(4)})
    rows = {each.fqn: each for each in found.rows}
    for name in ("copied", "columns", "whole", "divided"):
        assert_stats(rows[name].stats, float64_stats(x), rel=1e-12)
        assert rows[name]["shape"] == ([6, 2] if name == "divided" else [6, 4])
    for name in ("table", "weight", "bias"):
        assert_stats(rows[name].stats, float64_stats(table), rel=1e-12)
    assert rows["zeros"]["numel"] == 12 and rows["zeros"]["shape"] == [6, 2]
    said = {item.fqn: item.reason for item in found.skipped}
    assert said == {"divided": DIVIDED, "zeros": CONSTANT, "summand": SUMMED} and "summand" not in rows
    assert not any(key in each.values for each in found.rows for key in ("mesh", "sharded", "partial"))


class Shard(list[int]):
    """Counts comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Shard.compared += 1
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def test_shards_are_not_compared_with_all_others() -> None:
    """Which took minutes for a thousand ranks."""
    stats = TensorStats(2, 1.0, 1.0, 0.0, 2.0, 2.0)
    for extra in ({}, {"mesh": [*range(64)]}):
        rows = [Row({"fqn": "a", "shape": [128], "sharded": Shard([n]), **extra}, stats) for n in [*range(64)] * 2]
        found = merged({rank: Report("grads", "m", (), [each]) for rank, each in enumerate(rows)})
        assert (found.rows[0]["shape"], found.rows[0]["numel"]) == ([128], 128)  # two ranks have each shard
    assert Shard.compared <= 4 * 128


def test_places_stand_in_the_order_of_ranks() -> None:
    """Also where a later rank has the shards of the first one."""
    rows = [row(fqn, torch.ones(2), sharded=[at]) for fqn, at in (("a", 0), ("b", 1), ("c", 0))]
    found = merged({rank: report(each) for rank, each in enumerate(rows)})
    assert [each.fqn for each in found.rows] == ["a", "b", "c"]

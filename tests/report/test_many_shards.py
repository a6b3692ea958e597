"""Shards of many ranks."""

from __future__ import annotations

from hookcli.report import Report, Row, TensorStats
from hookcli.report.merged_ranks import merged


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

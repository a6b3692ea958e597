"""Reports of ranks become one: against statistics of the concatenated tensors, computed in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import examples
from support import assert_stats, float64_stats
from table.rank_reports import parts_of, report, row

from hookcli.table import STATS_KEYS, Row, Skipped, TensorStats, ranks
from hookcli.table.measured_rows import pack, unpack
from hookcli.table.merged_ranks import merged
from hookcli.table.merging import merge_parts
from hookcli.tensors.stats import Reducer, resolve, stats


@examples(20)
@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([0.0, 1e4]), st.booleans())
def test_the_parts_of_a_batch_are_merged_exactly(size, count, offset, holes) -> None:
    torch.manual_seed(size * 10 + count)
    whole = torch.randn(size * count, 3) + offset
    if holes:
        whole[0, 0], whole[-1, -1] = math.nan, math.inf
    found = merged(parts_of(*whole.chunk(count)), report(row("a", whole))).rows[0]
    assert found["shape"] == list(whole.shape)
    assert_stats(found.stats, float64_stats(whole))


def test_without_the_whole_tensors_grow_along_dimension_0_and_gradients_of_parameters_do_not() -> None:
    halves = torch.randn(4, 3).chunk(2)
    assert merged(parts_of(*halves)).rows[0]["shape"] == [4, 3]
    same = torch.randn(2, 3)
    found = merged(parts_of(same, same.clone(), kind="parameter")).rows[0]
    assert found["shape"] == [2, 3] and found.stats == stats(same)


def test_the_whole_tells_which_dimension_grows() -> None:
    whole = torch.randn(5, 4, 3)
    found = merged(parts_of(*whole.chunk(2, dim=1)), report(row("a", whole))).rows[0]
    assert found["shape"] == [5, 4, 3]
    assert_stats(found.stats, float64_stats(whole))


def test_what_does_not_grow_with_the_batch_counts_once_if_the_ranks_agree() -> None:
    table = torch.randn(3, 2)
    found = merged(parts_of(table, table.clone()), report(row("a", table)))
    assert found.rows[0]["shape"] == [3, 2] and found.rows[0].stats == stats(table) and not found.skipped
    differing = merged(parts_of(table, table + 1), report(row("a", table)))
    assert_stats(differing.rows[0].stats, float64_stats(torch.cat([table, table + 1])))
    assert differing.skipped == [Skipped("a", "does not grow with the batch, and differs between ranks")]


def test_a_gradient_that_is_a_sum_over_ranks_has_no_row() -> None:
    table = torch.randn(3, 2)
    found = merged(parts_of(table, table, kind="output"), report(row("a", table, kind="output")))
    assert not found.rows and "sum over ranks" in found.skipped[0].reason and found.totals == {"rows": 0}


def test_without_the_whole_what_is_the_same_on_all_ranks_counts_once() -> None:
    """Positions, or what tensor parallel ranks all compute. Zeros are the same whatever they are of."""
    positions, other, zeros = torch.randn(4, 3), torch.randn(4, 3), torch.zeros(4, 3)
    found = merged({r: report(row("a", positions), row("b", other + r), row("c", zeros)) for r in range(2)})
    assert [each["shape"] for each in found.rows] == [[4, 3], [8, 3], [8, 3]] and not found.skipped
    assert found.rows[0].stats == stats(positions)
    gradients = merged(parts_of(positions, positions.clone(), kind="output"))
    assert gradients.rows[0].stats == stats(positions) and not gradients.skipped


def test_single_numbers_are_merged_and_stay_single() -> None:
    """A module that returns its loss: the mean over ranks is that of the whole batch."""
    [found] = merged(parts_of(torch.tensor(1.0), torch.tensor(3.0))).rows
    assert found["shape"] == [] and found["mean"] == 2.0


@pytest.mark.sweep
@given(st.data())
def test_many_tensors_are_merged_as_each_by_itself(data: st.DataObject) -> None:
    """Equal to float64 of the concatenated tensors, and to the last digit but one to `TensorStats.merge`."""
    kinds = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int16])
    numbers = st.one_of(
        st.floats(-1e4, 1e4, width=16), st.sampled_from([0.0, math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-100])
    )
    places, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    dtypes = [data.draw(kinds) for _ in range(places)]
    tensors = [[_tensor(data.draw(st.lists(numbers, max_size=5)), dtype) for dtype in dtypes] for _ in range(count)]
    held = np.array(data.draw(st.lists(st.booleans(), min_size=places * count, max_size=places * count)))
    held = held.reshape(count, places)
    figures = np.array([[stats(tensor).floats() for tensor in part] for part in tensors])
    for place, found in enumerate(merge_parts(figures, held)):
        parts = [tensors[part][place] for part in range(count) if held[part, place]]
        expected = TensorStats.merge(map(stats, parts))
        for key in STATS_KEYS:
            assert getattr(found, key) == pytest.approx(getattr(expected, key), rel=1e-15, abs=0.0, nan_ok=True), key
        if parts:
            assert_stats(found, float64_stats(torch.cat(parts)))


def _tensor(values: list[float], dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.int16:
        return torch.tensor([int(value) if abs(value) < 3e4 else 7 for value in values], dtype=dtype)
    found = torch.tensor(values, dtype=torch.float64)
    return found.to(dtype) * (1 + 2j if dtype.is_complex else 1)


def test_what_some_ranks_did_not_see_is_said() -> None:
    a, b = row("a", torch.ones(2)), row("b", torch.ones(2))
    parts = {0: report(a, skipped=[Skipped("c", "never called"), Skipped("b", "never called")]), 1: report(a, b)}
    parts[2] = parts[0]
    found = merged(parts)
    assert {row.fqn for row in found.rows} == {"a", "b"}
    assert [(item.fqn, item.reason) for item in found.skipped] == [
        ("c", "never called (ranks 0, 2)"),
        ("b", "never called (ranks 0, 2)"),
        ("b", "not seen on ranks 0, 2"),
    ]


def test_the_time_is_the_slowest_ranks_and_the_loss_that_of_all_shares() -> None:
    metas = [
        {"seconds": s, "loss_value": v, "complete": c, "rank": r}
        for r, (s, v, c) in enumerate([(1.0, 2.0, True), (3.0, 0.5, False)])
    ]
    found = merged({rank: report(row("a", torch.ones(2)), meta=meta) for rank, meta in enumerate(metas)})
    assert found.meta == {"seconds": 3.0, "loss_value": 2.5, "complete": False}


def test_events_are_the_first_ranks() -> None:
    parts = {rank: report(Row({"fqn": str(rank)}), grouping="events") for rank in range(2)}
    found = merged(parts)
    assert [row.fqn for row in found.rows] == ["0"]


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


def test_histograms_travel_and_are_merged() -> None:
    whole = torch.randn(8, 3)
    halves = {
        rank: report(Row({"fqn": "a", "path": "", "shape": [4, 3]}, _with_hist(half)))
        for rank, half in enumerate(whole.chunk(2))
    }
    halves[0] = replace(halves[0], rows=[*halves[0].rows, Row({"fqn": "no statistics"})])
    back = {rank: unpack(pack(part), {}) for rank, part in halves.items()}
    assert [repr(part.to_dict()) for part in back.values()] == [repr(part.to_dict()) for part in halves.values()]
    back[0] = replace(back[0], rows=back[0].rows[:1])
    [found] = merged(back).rows
    assert found.stats is not None and found.stats.hist == _with_hist(whole).hist


def _with_hist(tensor: torch.Tensor) -> TensorStats:
    [found] = resolve([Reducer(hist=True)(tensor)])
    return found


def test_a_row_of_a_report_travels_in_a_few_hundred_bytes() -> None:
    """72 of statistics, and its place, of which the names repeat."""
    rows = [row(f"layers.{n // 10}.mlp.{n % 10}", torch.ones(4), type="Linear", call=0, index=n) for n in range(1000)]
    assert 72_000 < len(pack(report(*rows))) < 100_000


PLACES = {"fqn": "ab", "kind": ("input", "output"), "path": ("[0]", "[1]"), "call": (0, 1), "pass": (1, 2)}
PLACES |= {"hook": ("fp16", "powersgd"), "step": (0, 3), "bucket": (0, 1)}


@pytest.mark.parametrize("key", PLACES)
def test_rows_of_two_places_stay_apart(key) -> None:
    values = PLACES[key]
    whole = {value: torch.randn(4, 3) for value in values}
    halves = [{value: x[2 * rank :][:2] for value, x in whole.items()} for rank in (0, 1)]
    rows = [[row(**{"fqn": "a", "tensor": x, key: value}) for value, x in half.items()] for half in halves]
    parts = {rank: report(*rows[rank]) for rank in (0, 1)}
    together = merged(parts).rows
    assert [each[key] for each in together] == [*values]
    for each, x in zip(together, whole.values(), strict=True):
        assert_stats(each.stats, float64_stats(x))
    beside = ranks.beside({rank: replace(part, grouping="nested") for rank, part in parts.items()})
    assert [(each[key], each["rank"]) for each in beside.rows] == [(value, rank) for value in values for rank in (0, 1)]


def test_the_loss_of_ranks_is_their_sum_unless_one_has_none() -> None:
    def merged_loss(*losses: float | None) -> float | None:
        parts = {
            rank: replace(report(row("a", torch.ones(2))), meta={"loss_value": x}) for rank, x in enumerate(losses)
        }
        return ranks.common_meta(parts)["loss_value"]

    assert merged_loss(1.5, 0.25) == 1.75 and merged_loss(1.5, None) is None and merged_loss(None, 1.5) is None

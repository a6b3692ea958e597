"""Rows of one place become one: by each rule the value of the parts is that of the concatenation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import examples
from torch import Tensor

from hookcli.table import Column, Merge, Row
from hookcli.table.merge import merged_values

Parts = Sequence[Tensor]
parts_of_a_tensor = st.lists(
    st.lists(st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-100), min_size=1, max_size=5).map(
        lambda values: torch.tensor(values, dtype=torch.float64)
    ),
    min_size=2,
    max_size=6,
)
OF_PARTS: dict[Merge, tuple[Callable[[Tensor], Any], Callable[[Parts], Any]]] = {
    # A figure of a part, and what it is for all parts together, by PyTorch in float64
    Merge.SAME: (lambda x: x.dtype, lambda parts: torch.cat(list(parts)).dtype),
    Merge.FIRST: (lambda x: x[0].item(), lambda parts: torch.cat(list(parts))[0].item()),
    Merge.SUM: (lambda x: int((x > 0).sum()), lambda parts: int((torch.cat(list(parts)) > 0).sum())),
    Merge.LEAST: (lambda x: x.min().item(), lambda parts: torch.cat(list(parts)).min().item()),
    Merge.MOST: (lambda x: x.max().item(), lambda parts: torch.cat(list(parts)).max().item()),
    Merge.NORM: (lambda x: x.norm().item(), lambda parts: torch.cat(list(parts)).norm().item()),
}
OTHERS = {Merge.ONCE, Merge.RATIO, Merge.WORST, Merge.LISTED}


def merged(rule: Merge, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    columns = [Column(name, name, merge=rule) for name in dict.fromkeys(name for row in rows for name in row)]
    return merged_values([Row({"fqn": "a"} | row) for row in rows], columns)


def test_every_rule_is_tested() -> None:
    assert {*OF_PARTS, *OTHERS} == set(Merge)


@pytest.mark.sweep
@pytest.mark.parametrize("rule", OF_PARTS)
@examples(20)
@given(parts=parts_of_a_tensor)
def test_parts_are_merged_as_their_concatenation(rule: Merge, parts: Parts) -> None:
    of_part, of_all = OF_PARTS[rule]
    found = merged(rule, [{"x": of_part(part)} for part in parts])["x"]
    assert found == (pytest.approx(of_all(parts), rel=1e-12) if rule == Merge.NORM else of_all(parts))


@pytest.mark.parametrize("rule", [rule for rule in Merge if rule not in (Merge.FIRST, Merge.WORST)])
def test_a_value_that_no_row_has_stays_unknown(rule: Merge) -> None:
    assert merged(rule, [{"x": None}, {"x": None}])["x"] is None


@examples(20)
@given(parts=parts_of_a_tensor)
def test_a_value_that_one_row_lacks_is_that_of_the_others(parts: Parts) -> None:
    found = merged(Merge.SUM, [{"x": 3}, {"x": None}, *({"x": len(part)} for part in parts)])
    assert found["x"] == 3 + len(torch.cat(list(parts)))


def test_rows_that_disagree_have_no_value_in_common() -> None:
    assert merged(Merge.SAME, [{"x": 1}, {"x": 2}])["x"] is None


@given(sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=4), calls=st.integers(1, 3))
def test_a_module_that_is_called_several_times_counts_once(sizes: list[int], calls: int) -> None:
    rows = [Row({"fqn": f"block.{i}", "params": size}) for i, size in enumerate(sizes) for _ in range(calls)]
    found = merged_values([*rows, *rows[:1]], [Column("params", "Params", merge=Merge.ONCE)])
    assert found["params"] == sum(sizes)


@pytest.mark.sweep
@given(parts=parts_of_a_tensor, step=st.floats(1e-6, 1))
def test_a_ratio_is_that_of_the_merged_norms(parts: Parts, step: float) -> None:
    norm, ratio = (
        (Column(name, name, merge=Merge.NORM) for name in ("update", "weight")),
        Column("ratio", "r", merge=Merge.RATIO),
    )
    rows = [
        Row({"fqn": "a", "update": step * x.norm().item(), "weight": x.norm().item(), "ratio": step}) for x in parts
    ]
    found = merged_values(rows, [*norm, ratio])["ratio"]
    whole = torch.cat(list(parts)).norm().item()
    assert math.isnan(found) if whole == 0 else found == pytest.approx(step, rel=1e-9)


@given(st.permutations([(False, 0.5), (True, 3.0), (True, math.inf), (False, 9.0)]))
def test_of_compared_rows_the_worst_speaks(order: list[tuple[bool, float]]) -> None:
    rows = [{"times": times, "beyond": beyond, "figure": f"at {times}"} for beyond, times in order]
    assert merged(Merge.WORST, rows) == {"fqn": "a", "times": math.inf, "beyond": True, "figure": "at inf"}


def test_texts_are_listed_with_the_number_of_their_rows() -> None:
    rows = [{"note": "zeroed"}, {"note": "zeroed"}, {"note": None}, {"note": "scaled"}]
    assert merged(Merge.LISTED, rows)["note"] == "zeroed (2 of 4) and 1 more"
    assert merged(Merge.LISTED, rows[:2])["note"] == "zeroed"

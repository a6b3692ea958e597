"""A comparison as its page shows it: beside both sides' own rows, by kinds of tensors, and in words."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from hookcli.reporters.html.compared import Comparison
from hookcli.table import Finding, Report, Row, TensorStats, columns_named, document
from hookcli.table.columns.statistics import STATS_COLUMNS

DIFF = columns_named("fqn", "type", "kind", "times", "differs")
MEASURED = (*columns_named("fqn", "type", "call"), *STATS_COLUMNS)
ROWS = [
    Row({"fqn": "", "type": "Net", "kind": "output", "times": 0.5}),
    Row({"fqn": "fc", "type": "Linear", "kind": "output", "times": 30.0, "beyond": True, "differs": "far"}),
    Row(
        {"fqn": "old", "type": "Linear", "kind": "output", "times": math.inf, "beyond": True, "change": "renamed: new"}
    ),
    Row({"fqn": "gone", "type": "ReLU", "kind": "output", "change": "removed"}),
    Row({"fqn": "fc.weight", "kind": "grad", "times": 0.0}),
]


def measured(fqn: str) -> Row:
    return Row({"fqn": fqn, "type": "Linear", "call": 0}, TensorStats(4, 0.5, 1.0, -1.0, 2.0, 3.0))


SIDES = [
    Report("activations", "net", MEASURED, [measured(fqn) for fqn in ("", "fc", own, "gone")], {"side": side})
    for side, own in (("a", "old"), ("b", "new"))
]
FINDING = Finding("diff", "error", "fc", "it differs", 30.0)


def payload(*sides: Report, rows: Any = ROWS, findings: Any = (FINDING,), **more: Any) -> dict[str, Any]:
    diff = Report("diff", "net", DIFF, rows, more.pop("meta", {}), more.pop("totals", {}), findings=findings)
    reports = [diff, *sides]
    found = Comparison(reports, document(reports)["reports"]).payload()
    assert found
    return dict(json.loads(json.dumps(found, allow_nan=False)))


def test_each_row_has_those_of_both_sides_under_their_own_names() -> None:
    found = payload(*SIDES)
    assert [row["own"] for row in found["rows"][0]] == [
        [[1, 0], [2, 0]],
        [[1, 1], [2, 1]],
        [[1, 2], [2, 2]],
        [[1, 3], None],  # B has none of this name for a module that was removed
        [None, None],
    ]
    assert [row["in_b"] for row in found["rows"][0]] == ["", "fc", "new", "gone", "fc.weight"]
    agreements = [row["agreement"] for row in found["rows"][0]]
    assert agreements == ["within", "beyond", "beyond", "removed", "equal"]
    assert found["verdicts"][0]["agreements"] == [
        ["beyond", "2 beyond tolerance"],
        ["within", "1 within tolerance"],
        ["equal", "1 equal"],
        ["removed", "1 only in A"],
    ]


def test_columns_are_the_figures_of_the_sides_that_have_them_without_extremes() -> None:
    alone = replace(SIDES[1], rows=[Row({"fqn": "fc", "type": "Linear", "call": 0})])
    assert [column["name"] for column in payload(*SIDES)["columns"][0]] == [
        f"{side}_{name}" for name in ("mean", "std", "l2") for side in "ab"
    ]
    found = payload(SIDES[0], alone)["columns"][0]
    assert [(column["title"], column["of"], column["side"]) for column in found] == [
        ("Mean A", "mean", 0),
        ("Std A", "std", 0),
        ("L2 A", "l2", 0),
    ]


def test_parts_are_kinds_of_tensors_and_the_excess_is_that_of_outputs() -> None:
    found = payload(*SIDES)
    assert [(part["title"], part["rows"]) for part in found["parts"]] == [
        ("Outputs", [0, 1, 2, 3]),
        ("Gradients of parameters", [4]),
    ]
    assert found["excess"]["a"] == {"": 0.5, "fc": 30.0, "old": 300.0}  # above all others
    assert found["excess"]["b"] == {"": 0.5, "fc": 30.0, "new": 300.0}


@pytest.mark.parametrize(
    ("more", "tone"),
    [
        ({}, "error"),
        ({"rows": ROWS[:1], "findings": ()}, "good"),
        ({"rows": ROWS[:1], "findings": (), "totals": {"beyond": 1}}, "error"),
        ({"meta": {"a": {"record": "a"}, "b": {}}, "totals": {"apart": "they part", "verdict": "A is better"}}, ""),
        ({"meta": {"a": {"record": "a"}, "b": {}}, "totals": {"apart": "x", "verdict": "the loss was NaN"}}, "error"),
    ],
)
def test_the_colour_of_a_verdict(more: dict[str, Any], tone: str) -> None:
    assert payload(*SIDES, **more)["verdicts"][0]["tone"] == tone


def test_the_first_difference_is_the_row_that_the_finding_names() -> None:
    assert payload(*SIDES)["verdicts"][0]["first"] == {
        "row": 1,
        "facts": ["Linear", "far", "30.00 times the tolerance"],
    }
    assert payload(*SIDES, findings=())["verdicts"][0]["first"] is None
    weight = Row({"fqn": "fc.weight", "kind": "grad", "times": 5e4, "beyond": True, "call": 2})
    of_weight = payload(rows=[weight], findings=[Finding("diff", "error", "fc.weight", "", 5e4)])
    assert of_weight["verdicts"][0]["first"] == {"row": 0, "facts": ["gradient · call 2"]}


def test_settings_and_sizes_in_which_the_sides_differ() -> None:
    settings = {"seed": 0, "mode": "eval", "complete": True, "seconds": 1.0, "input": "1x3", "shapes": [1]}
    others = {"seed": 1, "mode": "eval", "complete": False, "seconds": 2.0, "device": "cpu", "shapes": [2]}
    sides = [replace(side, totals={"params": 1000 * n, "macs": 5}) for n, side in enumerate(SIDES, 1)]
    found = payload(*sides, meta={"a": settings, "b": others})
    assert found["settings"] == ["seed 0 → 1", "complete true → false"]
    assert found["sizes"] == ["parameters 1,000 → 2,000"]
    assert payload(*SIDES)["settings"] == payload(*SIDES)["sizes"] == []


def test_tolerances_are_said_as_they_were_given() -> None:
    assert (
        " Here rtol is 0.01000, as given, and atol 1.000e-06. "
        in f"{payload(meta={'rtol': 0.01, 'atol': 1e-6})['how'][0]} "
    )
    of_records = payload(meta={"a": {"record": "a"}, "b": {"record": "b"}})["how"]
    assert "square root of the dtype's epsilon" in of_records[0] and "steps that both records have" in of_records[1]
    assert not any("records" in line for line in payload()["how"])


def test_a_page_without_differences_has_no_comparison() -> None:
    assert Comparison(SIDES, document(SIDES)["reports"]).payload() is None

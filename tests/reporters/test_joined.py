"""What a page carries beside the document: the tree of places, modules joined from reports, faults inside of them."""

from __future__ import annotations

import math

from hookcli.reporters.html.joined import beside
from hookcli.table import Column, Finding, Report, Row, Skipped, TensorStats, columns_named
from hookcli.table.columns.statistics import STATS_COLUMNS
from hookcli.table.report import Reason

COLUMNS = (*columns_named("fqn", "type", "call"), *STATS_COLUMNS)


def tensor(fqn: str, call: int = 0, nan: int = 0, **values: object) -> Row:
    """Three elements 1, 2, 3 in the first call, and 4, 5, 6 in the second."""
    mean = 2.0 + 3 * call
    squares = sum((mean + shift) ** 2 for shift in (-1, 0, 1))
    stats = TensorStats(3 + nan, mean, 1.0, mean - 1, mean + 1, math.sqrt(squares), nan=nan)
    return Row({"fqn": fqn, "type": "Linear", "call": call, **values}, stats)


def activations(*rows: Row, **more: object) -> Report:
    return Report(
        "activations", "net", COLUMNS, rows, skipped=more.get("skipped", ()), findings=more.get("findings", ())
    )  # type: ignore[arg-type]


def test_calls_of_a_module_are_one_row_as_of_the_concatenated_tensors() -> None:
    rows = [tensor(""), tensor("a.fc"), tensor("a.fc", 1), tensor(":add_1")]
    (join,) = beside([activations(*rows)], kind="model")["joined"]
    assert [(one["fqn"], one["name"], one["parent"]) for one in join["modules"]] == [
        ("", "(model)", None),
        ("a.fc", "a.fc", 0),
        (":add_1", ":add_1", 0),
    ]
    assert join["modules"][1]["rows"] == {"activations": [(0, 1), (0, 2)]}
    merged = join["merged"]["activations"]
    (row,) = merged["rows"]
    assert merged["places"] == [1] and (row["calls"], row["numel"], row["mean"], row["max"]) == (2, 6, 3.5, 6.0)
    assert math.isclose(row["std"] ** 2, 3.5) and math.isclose(row["l2"] ** 2, 91)  # of 1 to 6


def test_places_are_all_names_with_the_modules_around_them() -> None:
    late = Skipped("b.late", "never called", kind=Reason.NEVER_CALLED)
    finding = Finding("HK010", "warning", "a.fc.weight", "all zero")
    found = beside([activations(tensor("a.fc"), skipped=[late], findings=[finding])], names=["c:mul_1"], kind="model")
    names = ["a", "a.fc", "a.fc.weight", "b", "b.late", "c", "c:mul_1"]
    assert sorted(found["places"].items()) == sorted(zip(names, ["", "a", "a.fc", "", "b", "", "c"], strict=True))
    assert [one["fqn"] for one in found["joined"][0]["modules"]] == ["a.fc", "b.late"]


def test_a_row_is_part_of_the_latest_call_around_it() -> None:
    rows = [tensor(""), tensor("a"), tensor("a.fc", nan=2), tensor("a", 1), tensor("a.fc", 1), tensor("b")]
    (shown,) = beside([activations(*rows)], kind="reports")["shown"]
    assert shown["parents"] == [None, 0, 1, 0, 3, 0]
    assert shown["inside"] == {0: "▲ a.fc 2 NaN", 1: "▲ fc 2 NaN"}
    assert shown["marks"] == {2: "2 NaN"} and shown["texts"]["fqn"][0] == "(model)"
    listed = Report("made", "net", (Column("name", "Name"),), [Row({"name": "x"})], grouping="list")
    assert beside([listed], kind="reports")["shown"][0]["parents"] is None


def test_sides_and_steps_are_joined_by_themselves() -> None:
    a, b = (Report("activations", "net", COLUMNS, [tensor("fc")], {"side": side}) for side in "ab")
    both = beside([a, b, Report("diff", "net", COLUMNS, [])], kind="diff")
    assert [join["reports"] for join in both["joined"]] == [[0], [1]]
    steps = [Report("activations", "net", COLUMNS, [tensor("fc")], {"phase": "train", "step": n}) for n in (0, 0, 5)]
    settings = [Report("settings", model, columns_named("fqn"), [Row({"fqn": "fc"})]) for model in ("net", "other")]
    assert [join["reports"] for join in beside(steps, settings)["joined"]] == [[0, 1, 3], [2, 3]]

"""Folding is exact, loses nothing that matters, and says what it hides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hookcli.errors import UsageError
from hookcli.reporters.table import TableReporter
from hookcli.table import STATS_COLUMNS, Column, Report, Row, TensorStats, columns_named
from hookcli.table.columns.layouts import SHAPES
from hookcli.table.grouping import View, apply_view, group_rows
from hookcli.table.marks import with_verdict
from hookcli.table.names import in_words
from hookcli.table.screen import fitting_depth


def stats(n: int, mean: float, **more: int) -> TensorStats:
    return TensorStats(n, mean, 1.0, mean - 1, mean + 1, 2.0, **more)


def module(fqn: str, call: int = 0, found: TensorStats | None = None, **values: object) -> Row:
    row = {"fqn": fqn, "type": "T", "call": call, "index": 0, "path": "", "shape": [1], "dtype": "float32"}
    return Row(row | values, found or stats(10, 1.0))


def report(*rows: Row) -> Report:
    return Report("activations", "net", (Column("fqn", "Layer"), Column("call", "Call"), *STATS_COLUMNS), rows)


def test_a_module_at_the_limit_keeps_its_own_figures_and_what_is_below_goes() -> None:
    folded = group_rows(report(module(""), module("a", found=stats(5, 3.0)), module("a.b"), module("a.b.c")), 1)
    assert [row.fqn for row in folded.rows] == ["", "a"]
    assert folded.rows[1].stats == stats(5, 3.0) and folded.rows[1].get("merged") is None


def test_what_is_not_finite_below_the_limit_is_noted_above_it() -> None:
    hidden = module("a.b.c", found=stats(10, 0.0, nan=2))
    assert group_rows(report(module("a"), module("a.b"), hidden), 1).rows[0]["note"] == "▲ b.c 2 NaN"
    assert group_rows(report(module("a"), module("a.b", found=stats(1, 0.0, inf=1))), 1).rows[0]["note"] == "▲ b 1 Inf"


@pytest.mark.parametrize(
    ("fqn", "owner", "words"),
    [
        ("stages.0.1", "stages.0", "stages.0.1"),
        ("stages.0.fc", "stages.0", "fc"),
        ("2", "", "layer 2"),
        ("0.1", "0", "layer 0.1"),
        ("0.weight", "", "0.weight"),
        ("", "", "(model)"),
    ],
)
def test_a_numbered_layer_does_not_read_as_a_count(fqn: str, owner: str, words: str) -> None:
    assert in_words(fqn, owner) == words
    if owner:
        noted = group_rows(report(module(owner), module(fqn, found=stats(1, 0.0, nan=1))), owner.count(".") + 1)
        assert noted.rows[0]["note"] == f"▲ {words} 1 NaN"
    else:
        assert with_verdict(report(module(fqn, found=stats(1, 0.0, nan=1)))).totals["verdict"] == f"{words}: 1 NaN"


def test_many_faults_in_a_low_terminal_are_told_in_their_first_words() -> None:
    rows = [module(f"part{n}.{part}", found=stats(99_999, 0.0, nan=99_999, inf=n)) for n in range(9) for part in "ab"]
    table = TableReporter().render([report(*rows)], View(width=80, height=17))
    lines = [line for line in table.splitlines() if line.startswith("part")]
    assert len(lines) == 9 and all("▲ a 99,999 NaN" in line and line.endswith(" …") for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(("probe", "key"), [("memory", "held"), ("diff", "grew")])
def test_a_screen_tells_whole_what_a_peak_holds_and_what_grew(probe: str, key: str, width: int) -> None:
    sentence = " + ".join(f"{n}.5 MiB of kind {n}" for n in range(9))
    rows = [module(f"part{n}.a") for n in range(9)]
    some = replace(report(*rows), probe=probe, totals={key: sentence, "times": "t" * 200})
    text = " ".join(TableReporter().render([some], View(width=width, height=24)).split())
    assert sentence in text and f"{sentence} …" not in text and "t" * 200 not in text
    low = " ".join(TableReporter().render([some], View(width=width, height=12)).split())
    assert (sentence in low) is (key == "held")  # where room is tight, the first line matters more


def test_a_narrow_table_of_shapes_keeps_parameters_rather_than_paths() -> None:
    values = {
        "type": "T",
        "path": '["last_hidden_state"]',
        "output_shape": [1, 128, 5000],
        "params": 5_907_968,
        "macs": 9**9,
    }
    rows = [Row({"fqn": f"a_name_of_some_length.{n}", **values}) for n in range(3)]
    texts = {w: TableReporter().render([Report("shapes", "net", SHAPES, rows)], View(width=w)) for w in (72, 120)}
    assert "5,907,968" in texts[72] and "last_hidden" not in texts[72] and "last_hidden" in texts[120]


def test_the_number_of_rows_shown_is_said_at_every_width() -> None:
    some = report(*(module(f"part{n}.{part}") for n in range(9) for part in "abc"))
    for width in (80, 120):
        assert "9 of 27 rows" in TableReporter().render([some], View(width=width, height=24))


@pytest.mark.parametrize("height", [24, 60])
def test_of_a_records_tables_a_screen_shows_those_that_fit_and_names_the_others(height: int) -> None:
    def of(model: str, *rows: Row) -> Report:
        return with_verdict(replace(report(*rows), probe="run", model=model))

    sound = of("sound", *(module(f"part{n}") for n in range(12)))
    bad = of("bad", *(module(f"part{n}", found=stats(9, 0.0, nan=n)) for n in range(12)))
    lines = TableReporter().render([sound, bad], View(width=80, height=height)).splitlines()
    assert len(lines) + 2 <= height and ("sound: 12 rows (--depth all shows all)" in lines) is (height == 24)
    assert lines[0] == ("part1: 1 NaN, and in 10 modules after it" if height == 24 else "sound") and "bad" in lines


def test_the_note_says_what_the_module_that_it_names_holds() -> None:
    first, later = module("a.b", found=stats(9, 0.0, inf=1)), module("a.c", found=stats(9, 0.0, nan=1))
    assert group_rows(report(module("a"), first, later), 1).rows[0]["note"] == "▲ b 1 Inf, and 1 more"
    assert group_rows(report(module("a"), later, first), 1).rows[0]["note"] == "▲ c 1 NaN, and 1 more"
    both = module("a.b", found=stats(9, 0.0, nan=1, inf=1))
    assert group_rows(report(module("a"), both), 1).rows[0]["note"] == "▲ b 1 NaN, 1 Inf"


def test_calls_are_merged_exactly() -> None:
    calls = [module("relu", call=n, found=stats(10 * (n + 1), float(n))) for n in range(3)]
    (row,) = group_rows(report(*calls), 1).rows
    assert row["merged"] == 3
    assert row.stats == TensorStats.merge(stats(10 * (n + 1), float(n)) for n in range(3))
    assert row["mean"] == pytest.approx((0 * 10 + 1 * 20 + 2 * 30) / 60)


def test_what_is_said_of_some_calls_is_said_of_all_of_them_with_their_number() -> None:
    calls = [module("relu", call=n, **({"edited": "zero"} if n else {})) for n in range(3)]
    assert group_rows(report(*calls), 1).rows[0]["edited"] == "zero (2 of 3)"
    noted = [module("a", note="weight tied to b"), module("a.c", found=stats(9, 0.0, nan=1))]
    assert group_rows(report(*noted), 1).rows[0]["note"] == "▲ c 1 NaN; weight tied to b"


def test_a_call_beyond_tolerance_is_not_lost_behind_one_that_was_added() -> None:
    added = Row({"fqn": "relu", "call": 0, "change": "added"})
    beyond = Row({"fqn": "relu", "call": 1, "times": 5.0, "beyond": True, "differs": "mean 1 → 2"})
    (row,) = group_rows(report(added, beyond), 1).rows
    assert (row["beyond"], row["times"], row["change"]) == (True, 5.0, "added (1 of 2)")


def test_all_shows_every_call() -> None:
    rows = [module("relu", call=n) for n in range(3)]
    assert len(group_rows(report(*rows), math.inf).rows) == 3


def test_below_a_container_that_never_ran_only_the_leaves_are_merged() -> None:
    """A ModuleList has no row: its parts count once, not their containers and themselves."""
    rows = [module("list.0", found=stats(8, 1.0)), module("list.0.x", found=stats(10, 1.0)),
            module("list.1", found=stats(20, 2.0))]  # fmt: skip
    (row,) = group_rows(report(*rows), 1).rows
    assert (row.fqn, row["merged"], row["numel"]) == ("list", 2, 30)


def test_parameters_merge_by_name_and_a_lone_one_keeps_its_own() -> None:
    def parameter(fqn: str) -> Row:
        return Row({"fqn": fqn, "kind": "parameter", "call": 0, "pass": 0, "path": "", "shape": [4]}, stats(4, 1.0))

    rows = [parameter(name) for name in ("fc.bias", "fc.weight", "layer.0.a.weight", "layer.0.b.weight", "stem.weight")]
    folded = group_rows(report(*rows), 1)
    assert [(row.fqn, row.get("merged")) for row in folded.rows] == [("fc", 2), ("layer", 2), ("stem.weight", None)]
    assert sum(row["numel"] for row in folded.rows) == 20


def shape_row(fqn: str, params: int | None, macs: int | None, call: int = 0) -> Row:
    values = {"fqn": fqn, "type": "T", "depth": fqn.count(".") + 1, "call": call, "index": 0, "path": ""}
    return Row(values | {"output_shape": [1], "params": params, "trainable": params, "macs": macs})


def test_costs_below_a_container_that_never_ran_are_those_of_the_outermost() -> None:
    """`list` has no row. list.0 costs 30 of which 20 in its part; list.1 runs twice."""
    rows = [shape_row("list.0", 9, 30), shape_row("list.0.a", 5, 20), shape_row("list.1", 4, 7),
            shape_row("list.1", 4, 8, call=1)]  # fmt: skip
    (row,) = group_rows(report(*rows), 1).rows
    assert (row.fqn, row["params"], row["trainable"], row["macs"], row["depth"]) == ("list", 13, 13, 45, 1)
    (row,) = group_rows(report(shape_row("list.0", 1, None), shape_row("list.1", 2, None)), 1).rows
    assert row["macs"] is None


def test_a_column_that_is_not_known_to_merge_is_not_shown_for_a_group() -> None:
    rows = [Row({"fqn": "relu", "call": n, "path": "", "dead": 10 * n, "units": 5}) for n in range(3)]
    (row,) = group_rows(report(*rows), 1).rows
    assert (row["dead"], row["units"], row["call"], row["merged"]) == (None, 5, None, 3)


def test_a_list_without_places_is_never_folded() -> None:
    models = Report("models", "torchvision", (Column("name", "Model"),), [Row({"name": str(n)}) for n in range(99)])
    assert fitting_depth(models, 10) == math.inf and group_rows(models, 1) is models


def test_zeros_sort_by_share_and_shapes_by_size() -> None:
    rows = [module("big", found=stats(1000, 1.0, zeros=20)), module("small", found=stats(10, 1.0, zeros=9))]
    assert [r.fqn for r in apply_view(report(*rows), View(sort="-zeros")).rows] == ["small", "big"]
    rows = [Row({"fqn": "a", "s": [[2, 3], [4]]}), Row({"fqn": "b", "s": [3]}), Row({"fqn": "c", "s": None})]
    sized = Report("shapes", "net", (Column("fqn", "Layer"), Column("s", "S")), rows)
    assert [r.fqn for r in apply_view(sized, View(sort="s")).rows] == ["b", "a", "c"]


def test_the_depth_that_fits() -> None:
    rows = [module(f"a{i}") for i in range(5)] + [module(f"a{i}.b{j}") for i in range(5) for j in range(4)]
    assert fitting_depth(report(*rows), 100) == math.inf
    assert fitting_depth(report(*rows), 24) == 1
    assert fitting_depth(report(*rows), 3) == 1


def test_a_lone_child_is_no_grouping() -> None:
    """Which would say what the model's own row says: a model around a model, the one Sequential of a generator."""
    rows = [module(""), module("model"), *(module(f"model.{i}") for i in range(9))]
    rows += [module(f"model.{i}.{j}") for i in range(9) for j in range(4)]
    assert fitting_depth(report(*rows), 14) == 2 == fitting_depth(report(*rows), 4)
    assert fitting_depth(report(module(""), module("lone")), 1) == 1


def test_sorting_puts_what_is_missing_last_both_ways() -> None:
    rows = [module("a", found=stats(1, 2.0)), module("b", found=TensorStats(0)), module("c", found=stats(1, 1.0))]
    assert [r.fqn for r in apply_view(report(*rows), View(sort="mean")).rows] == ["c", "a", "b"]
    assert [r.fqn for r in apply_view(report(*rows), View(sort="-mean")).rows] == ["a", "c", "b"]


def test_columns_come_in_the_order_asked_for() -> None:
    assert [c.name for c in apply_view(report(), View(columns=["mean", "fqn"])).columns] == ["mean", "fqn"]
    with pytest.raises(UsageError, match=r"--columns: unknown column 'men'; did you mean mean"):
        apply_view(report(), View(columns=["men"]))


def test_lists_and_mixed_values_sort() -> None:
    rows = [Row({"fqn": "a", "next": value}) for value in ([3, None], ["b", "c"], [2, 2], "x", [[1, 2], [5]], 6)]
    whole = Report("x", "m", columns_named("fqn", "next"), rows)
    found = [row["next"] for row in apply_view(whole, View(sort="next")).rows]
    assert found == [[3, None], [2, 2], 6, [[1, 2], [5]], ["b", "c"], "x"]

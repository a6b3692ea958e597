"""Charts of figures over steps, read back from their characters."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from records import recorded_step
from support import each_once

from hookcli.record.file.views.over_time import over_time
from hookcli.reporters.chart import ChartReporter
from hookcli.table import Column, Report, Row, TensorStats
from hookcli.table.grouping import View, apply_view


def drawn(values: list[float | None], view: View | None = None, steps: list[int] | None = None) -> list[str]:
    columns = (Column("step", "Step"), Column("ratio", "|dw|/|w|"))
    places = steps or [100 * n for n in range(len(values))]
    rows = [Row({"step": step, "ratio": value}) for step, value in zip(places, values, strict=True)]
    return ChartReporter().render([Report("over-time", "Net", columns, rows)], view or View()).splitlines()


def points(lines: list[str]) -> list[tuple[int, int]]:
    """Column and line of each point, in the order of columns."""
    found = [(x, y) for y, line in enumerate(lines) for x, c in enumerate(line) if c == "•"]
    return sorted(found)


def test_points_stand_where_their_figures_say() -> None:
    lines = drawn([1.0, 3.0, 2.0, 1.0, 3.0])
    assert lines[:2] == ["Net · 5 recorded steps (0 to 400)", "|dw|/|w|"]
    found = points(lines)
    heights = {line[:10].strip(): y for y, line in enumerate(lines) if "┤" in line}
    assert list(heights) == ["3.000", "2.000", "1.000"]
    assert [y for _, y in found] == [heights[text] for text in ("1.000", "3.000", "2.000", "1.000", "3.000")]
    gaps = [b - a for (a, _), (b, _) in pairwise(found)]
    assert max(gaps) - min(gaps) <= 1
    assert lines[-1].split() == ["0", "100", "200", "300", "400"]


def test_nan_none_and_infinity_are_gaps() -> None:
    for gap in (math.nan, None, math.inf, -math.inf):
        lines = drawn([1.0, gap, 3.0, 2.0, 1.0])
        first, second, *_ = points(lines)
        between = [line[first[0] + 1 : second[0]] for line in lines[2:-2]]
        assert len(points(lines)) == 4 and not any(map(str.strip, between))


def test_what_never_changes_is_one_line() -> None:
    assert drawn([0.5, 0.5, 0.5])[1:] == ["|dw|/|w|: 0.5000 throughout"]
    assert drawn([0.5, None, 0.5])[1:] == ["|dw|/|w|: 0.5000 in 2 of 3 recorded steps"]
    assert drawn([0.5])[1:] == ["|dw|/|w|: 0.5000"]
    assert drawn([0.0, 0.0])[1:] == ["|dw|/|w|: 0 throughout"]


def test_without_any_figure_there_is_no_chart() -> None:
    assert drawn([math.nan, None]) == ["Net · 2 recorded steps (0 to 100)"]
    assert drawn([]) == ["Net · no recorded step"]


def test_orders_of_magnitude_are_logarithms() -> None:
    lines = drawn([1e-6, 1e-3, 1.0])
    assert lines[1] == "|dw|/|w| (logarithmic)"
    heights = [y for _, y in points(lines)]
    assert len(heights) == 3 and heights[0] - heights[1] == heights[1] - heights[2] > 0
    assert [line[:10].strip() for line in lines if "┤" in line] == ["1.000", "0.001000", "1.000e-06"]
    assert "(logarithmic)" not in drawn([0.0, 1e-3, 1.0])[1]


def test_the_axis_is_logarithmic_from_a_spread_of_more_than_100() -> None:
    assert drawn([0.25, 5.0, 25.0])[1] == "|dw|/|w|"
    assert drawn([0.25, 5.0, 25.25])[1] == "|dw|/|w| (logarithmic)"


@pytest.mark.parametrize(("width", "count"), each_once([None, 40, 80, 100, 300], [2, 41, 500]))
def test_charts_fit_and_are_plain(width: int | None, count: int) -> None:
    lines = drawn([math.sin(n) for n in range(count)], View(width=width, height=30, color=True))
    assert max(map(len, lines)) <= min(width or 80, 120) and "\x1b" not in "".join(lines)
    assert bool(points(lines)) == (count <= 40)


def titles(view: View) -> list[str]:
    reports = over_time([recorded_step(step, std=1.0 + step) for step in range(5)], "")
    lines = ChartReporter().render([apply_view(report, view) for report in reports], view).splitlines()
    assert len(lines) <= 24
    return [line.partition(":")[0] for line in lines if line[0] not in " "][1:]


def test_the_figures_that_people_chart_come_first_and_others_on_request() -> None:
    first = ["Loss", "L2 of the parameters' gradients", "|dw|/|w|", "Std of the output"]
    assert titles(View(width=80, height=24)) == [*first, "more figures"]
    assert titles(View(columns=["weight", "seconds", "loss"])) == ["L2 of the weights", "Time (seconds)", "Loss"]


def compared(a: list[float | None], b: list[float | None]) -> list[str]:
    columns = (Column("step", "Step"), Column("loss", "Loss"), Column("loss_b", "Loss (B)"))
    rows = [Row({"step": n, "loss": x, "loss_b": y}) for n, (x, y) in enumerate(zip(a, b, strict=True))]
    report = Report("over-time", "Net", columns, rows, {"against": {"a": "one", "b": "two"}})
    lines = ChartReporter().render([report], View()).splitlines()
    assert lines[1] == "• A: one   x B: two   * both"
    return lines[2:]


def test_two_curves_are_told_apart_in_each_column() -> None:
    title, *lines = compared([4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 3.0, 4.0])
    assert title == "Loss (parting at step 2: A 2.000, B 3.000; step 3: A 1.000, B 4.000)"
    canvas = [line[11:].ljust(69) for line in lines[:-2]]
    found = ["".join(sorted({row[x] for row in canvas} - {" "})) for x in range(69)]
    assert found[:20] == ["*"] * 20 and set(found[35:]) == {"x•"}
    assert [row[0] + row[-1] for row in (canvas[0], canvas[-1])] == ["*x", " •"]


def test_two_curves_that_say_little() -> None:
    assert compared([0.5, 0.5], [0.5, 0.5]) == ["Loss: 0.5000 throughout"]
    assert compared([0.5, 0.5], [0.1, 0.1]) == ["Loss: A 0.5000, B 0.1000 throughout"]
    assert compared([1.0, 2.0], [None, None])[0] == "Loss (no step in both)"
    assert compared([1.0, 2.0, math.nan], [1.0, 2.0001, None])[0] == "Loss (A and B agree within 0.1%)"
    gap = compared([1.0, math.nan, 3.0, 2.0], [None, None, 1.0, 1.0])
    assert gap[0].startswith("Loss (parting at step 2") and not any("•" in line[13:50] for line in gap[1:-1])


def test_runs_that_turn_nan_or_infinite_in_the_same_step_do_not_part_there() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        assert compared([1.0, 2.0, bad], [1.0, 2.0, bad])[0] == "Loss (A and B agree within 0.1%)"
        assert compared([0.5, 0.5, bad], [0.5, 0.5, bad])[0] == "Loss: 0.5000 (A and B agree within 0.1%)"
    assert compared([1.0, 2.0, math.inf], [1.0, 2.0, math.nan])[0] == "Loss (parting at step 2: A inf, B NaN)"
    assert compared([0.5, 0.5], [0.5, math.nan]) == ["Loss: 0.5000 (parting at step 1: A 0.5000, B NaN)"]


def test_steps_with_something_not_finite_are_named() -> None:
    columns = (Column("step", "Step"), Column("ratio", "|dw|/|w|"))
    rows = [Row({"step": s, "ratio": 0.1 * s}, TensorStats(4, 1.0, nan=int(s > 1))) for s in range(4)]
    text = ChartReporter().render([Report("over-time", "Net", columns, rows)], View())
    assert text.endswith("NaN or Inf in step 2 and 1 more step\n")


def test_labels_have_the_digits_that_tell_them_apart() -> None:
    lines = drawn([0.99991, 0.99992, 0.99997])
    labels = [line.partition("┤")[0].strip() for line in lines if "┤" in line]
    assert labels == ["0.99997", "0.99994", "0.99991"]

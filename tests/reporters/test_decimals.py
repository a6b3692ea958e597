"""Figures in a column: their decimal points align, where the table has room."""

from __future__ import annotations

import re

import pytest

from hookcli.reporters.decimals import aligned
from hookcli.reporters.table import TableReporter
from hookcli.table import Report, Row, columns_named
from hookcli.table.formatting import number
from hookcli.table.grouping import View

FIGURES = (0.5211, 12.3, -1.2e-07, 0.0, 4129.0, 1.935e5, None)


@pytest.mark.parametrize("most", [12, 14, 99])
def test_points_align_and_other_texts_end_with_the_column(most: int) -> None:
    texts = [number(figure) for figure in FIGURES]
    found = aligned(texts, most)
    assert [text.strip() for text in found] == texts
    if most < 4 + len(".200e-07"):
        assert found == texts
        return
    width = max(map(len, found))
    assert width <= most and found[-1] == "-"
    ends = {width - len(text) + len(re.match(r"-?\d+", text)[0]) for text in found[:-1]}  # type: ignore[index]
    assert ends == {4}


def test_integers_and_shares_stay_as_they_are() -> None:
    for texts in (["1,000", "802,816", "-"], ["12.3%", "0", "100%"], ["1", "20"], ["4.089 G", "512"], []):
        assert aligned(texts, 99) == texts


@pytest.mark.parametrize("color", [False, True])
def test_a_table_is_never_wider_than_its_screen_for_it(color: bool) -> None:
    rows = [Row({"fqn": f"layer{n}", "max_abs": figure, "rel_l2": figure}) for n, figure in enumerate(FIGURES)]
    report = Report("other", "net", columns_named("fqn", "max_abs", "rel_l2"), rows)
    for width, is_aligned in ((30, False), (34, True)):  # 6 + 2 + 10 + 2 + 10, and 12 for each column
        text = TableReporter().render([report], View(width=width, height=50, color=color))
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
        of_table = [line for line in lines if line.startswith("layer")]
        assert len(of_table) == 7 and max(map(len, lines[1:])) <= width
        assert (len({line.index(".") for line in of_table if "." in line}) == 1) is is_aligned

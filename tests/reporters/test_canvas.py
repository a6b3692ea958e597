"""Charts of characters, against drawings by hand."""

from __future__ import annotations

import math

from hookcli.reporters.canvas import Canvas

LEVELS = {0.0: "0", 1.0: "1", 2.0: "2"}


def drawn(canvas: Canvas, *ticks: tuple[float, str]) -> list[str]:
    values, names = zip(*ticks, strict=True)
    return [*canvas.lines(values, names)]


def test_axes_labels_and_marks() -> None:
    canvas = Canvas((16, 5), (0, 4), LEVELS)
    canvas.mark([(0, 0), (2, 1), (3, math.nan), (4, 2)], "•")
    assert drawn(canvas, (0, "0"), (4, "4")) == [
        "         2┤    •",
        "         1┤  •",
        "         0┤•",
        "          └┬───┬",
        "           0   4",
    ]


def test_a_curve_has_two_by_four_dots_to_a_cell() -> None:
    """Three cells by one, so six dots by four: a rising line, and one that falls and has all below it drawn."""
    levels = {0.0: "0", 3.0: "3"}
    rising, filled = Canvas((14, 3), (0, 5), levels), Canvas((14, 3), (0, 5), levels)
    rising.curve([(0, 0), (3, 3), (4, math.nan), (5, 3)])
    assert drawn(rising, (0, "0"))[0] == "         3┤⡠⠊⠈"  # dots 1 to 4 of a diagonal, and one alone
    filled.curve([(0, 3), (3, 0), (5, 0)], filled=True)
    assert drawn(filled, (0, "0"))[0] == "         3┤⣷⣄⣀"


def test_names_that_have_no_room_are_left_out_with_their_ticks() -> None:
    ticks = ((0, "first"), (1, "second"), (9, "last"))
    assert drawn(Canvas((21, 3), (0, 9), LEVELS), *ticks)[1:] == ["          └┬────────┬", "         first   last"]


def test_a_single_place_is_in_the_middle() -> None:
    canvas = Canvas((16, 5), (3, 3), {2.0: "13 characters"})
    canvas.mark([(3, 2.0)], "•")
    assert drawn(canvas, (3, "3")) == [
        "             │",
        "13 characters┤ •",
        "             │",
        "             └─┬",
        "               3",
    ]

"""Slopes over widths against NumPy's fit, and the first line from handmade slopes."""

from __future__ import annotations

import numpy as np
import pytest

from hookcli.capabilities.coord_check.slopes import Growth, Slope, in_a_word, slope, verdict

POINTS = [(16, 0.5), (16, 0.7), (32, 0.6), (32, 1.1), (64, 1.0), (64, 1.9), (128, 1.7), (128, 2.5)]


def test_a_slope_and_its_error_are_those_of_numpy_s_fit() -> None:
    x, y = (np.log2(values) for values in np.array(POINTS).T)
    (expected, _), covariance = np.polyfit(x, y, 1, cov=True)
    found = slope(POINTS)
    assert found and found.value == pytest.approx(expected, rel=1e-12)
    assert found.error == pytest.approx(covariance[0, 0] ** 0.5, rel=1e-12)


@pytest.mark.parametrize("power", [1.0, 0.5, 0.0, -1.0])
def test_a_power_law_has_its_exponent_without_error(power: float) -> None:
    found = slope([(width, 3 * width**power) for width in (10, 20, 50)])
    assert found and found.value == pytest.approx(power, abs=1e-12) and found.error == pytest.approx(0, abs=1e-12)


def test_zeros_are_left_out_and_two_widths_have_no_slope() -> None:
    found = slope([*POINTS, (256, 0.0)])
    assert found == slope(POINTS)
    assert slope([(16, 1.0), (16, 2.0), (32, 1.0), (64, 0.0)]) is None


def of(**slopes: tuple[float, float]) -> list[Growth]:
    """Growths from a module and kind, joined by two underscores, with their slope and error."""
    pairs = [(name.split("__"), Slope(*figures)) for name, figures in slopes.items()]
    return [Growth(fqn.replace("_", "."), kind, one) for (fqn, kind), one in pairs]


FLAT = (0.02, 0.01)


@pytest.mark.parametrize(
    ("growths", "said"),
    [
        (
            of(mlp__change=(0.48, 0.05), mlp__size=(0.9, 0.01), head__change=FLAT),
            (
                "The change of mlp's output grows with width: slope 0.48 ± 0.05 (16 to 64): "
                "hyperparameters will not transfer"
            ),
        ),
        (  # the one that is surely largest, and of equal ones the innermost
            of(a__change=(0.9, 0.3), b__change=(0.5, 0.02), b_c__change=(0.5, 0.02), d__change=FLAT),
            (
                "The change of b.c's output grows with width: slope 0.50 ± 0.02 (16 to 64; 3 of 4 modules): "
                "hyperparameters will not transfer"
            ),
        ),
        (
            of(a__change=FLAT, a__initial=(0.5, 0.02), a__size=(0.4, 0.02)),
            (
                "The output of a at initialization grows with width: slope 0.50 ± 0.02 (16 to 64): "
                "hyperparameters will not transfer"
            ),
        ),
        (
            of(a__change=(0.3, 0.15), b__change=FLAT),
            (
                "Nothing clearly grows with width (16 to 64), but the change of a's output may: slope 0.30 ± 0.15; "
                "more --seeds, or larger widths, will tell"
            ),
        ),
        (
            of(a__change=(-0.5, 0.02), b__change=FLAT, b__size=(-0.5, 0.01)),
            "Nothing grows with width, though the change of a's output shrinks: slope -0.50 ± 0.02 (16 to 64)",
        ),
        (
            of(a__change=FLAT, b__size=(-0.5, 0.01)),
            "Nothing grows with width (16 to 64): the largest slope is 0.02 ± 0.01, of the change of a's output",
        ),
        (
            of(a__change=(0.15, 0.24), b__change=FLAT),
            (
                "Nothing clearly grows with width (16 to 64), but the change of a's output may: slope 0.15 ± 0.24; "
                "more --seeds, or larger widths, will tell"
            ),
        ),
        (
            of(a__change=(0.2, 0.08), b__change=(0.05, 0.2)),  # which may be larger, but need not grow
            (
                "Nothing clearly grows with width (16 to 64), but the change of a's output may: slope 0.20 ± 0.08; "
                "more --seeds, or larger widths, will tell"
            ),
        ),
        (of(a__size=FLAT), "No output has changed: nothing that these modules depend on was trained"),
    ],
)
def test_the_first_line(growths: list[Growth], said: str) -> None:
    assert verdict(growths, "16 to 64") == said


def test_a_row_says_in_a_word_what_it_does() -> None:
    assert in_a_word(of(a__change=(0.5, 0.01), a__size=(0.5, 0.01))) == "change grows"
    assert in_a_word(of(a__change=FLAT, a__size=(0.5, 0.01))) == "grows"
    assert in_a_word(of(a__change=(-0.5, 0.01))) == "change shrinks"
    assert in_a_word(of(a__change=(0.15, 0.1), a__size=(-0.5, 0.01))) == ""

"""HK033 and its near miss."""

from __future__ import annotations

from checks.test_checks import Case, Fn, require_caught


def test_a_peak_above_the_limit_is_found_and_one_at_the_limit_is_not() -> None:
    limits = [{"thresholds": {"HK033": limit}} for limit in (831, 832)]
    require_caught(Case("HK033", Fn, Fn, "layer", 832, settings=limits[0], near=limits[1]))

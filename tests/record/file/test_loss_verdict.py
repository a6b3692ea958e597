"""Which of two runs is better, in a sentence."""

from __future__ import annotations

import math
import random

import pytest

from hookcli.record.file.comparison.loss_verdict import Losses, TwoLosses

A = {0: 3.0, 10: 2.0, 20: 1.2}
AT_20 = "loss 1.200 at step 20"
B_HAS = f"A is better: {AT_20}, where B has"
CASES: dict[str, tuple[Losses, tuple[str, ...]]] = {
    "alike": (A, (f"both have {AT_20}",)),
    "rounding": ({**A, 10: 2.00001}, (f"both have {AT_20}",)),
    "meet again": ({**A, 10: 4.0}, (f"both have {AT_20}", "losses part at step 10 and meet again")),
    "far lower": (
        {**A, 10: 0.5, 20: 0.0003},
        ("B is better: loss 3.000e-04 at step 20, where A has 1.200", "losses part at step 10"),
    ),
    "a little lower": (
        {**A, 20: 1.1},
        ("B is better: loss 1.100 at step 20, 8.3% lower than A's 1.200", "losses part at step 20"),
    ),
    "higher, and was better": (
        {**A, 10: 1.0, 20: 6.0},
        (
            f"A is better: {AT_20}, 5 times lower than B's 6.000",
            "best: A 1.200 (step 20), B 1.000 (step 10)",
            "losses part at step 10",
        ),
    ),
    "a longer run": (
        {**A, 20: 0.9, 30: 0.8},
        (
            "B is better: loss 0.9000 at step 20, 25% lower than A's 1.200",
            "step 20 is the last in both",
            "best: A 1.200 (step 20), B 0.8000 (step 30)",
            "losses part at step 20",
        ),
    ),
    "negative": ({**A, 20: -4.0}, ("B is better: loss -4.000 at step 20, where A has 1.200", "losses part at step 20")),
    "not a number": (
        {**A, 10: math.nan, 20: math.nan},
        (
            f"{B_HAS} NaN",
            "B's loss was NaN from step 10 on (2 of 3 steps)",
            "best: A 1.200 (step 20), B 3.000 (step 0)",
            "losses part at step 10",
        ),
    ),
    "minus infinity is not a success": (
        {**A, 20: -math.inf},
        (
            f"{B_HAS} -inf",
            "B's loss was Inf from step 20 on (1 of 3 steps)",
            "best: A 1.200 (step 20), B 2.000 (step 10)",
            "losses part at step 20",
        ),
    ),
    "no step in common": ({5: 1.0}, ()),
    "none": ({}, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sentence(case: str) -> None:
    b, parts = CASES[case]
    assert "; ".join(TwoLosses(A, b, 3.5e-4, 0.0).headlines().values()) == "; ".join(parts)
    if parts:
        verdict, mirrored = (TwoLosses(*sides, 3.5e-4, 0.0).headlines()["verdict"] for sides in ((A, b), (b, A)))
        assert verdict.startswith(parts[0]) and not verdict.endswith(parts[-1:] if parts[1:] else ())
        assert mirrored[:1] == {"A": "B", "B": "A"}.get(verdict[:1], verdict[:1])


def test_both_are_nan() -> None:
    lost, nan = {0: 3.0, 20: math.nan}, "NaN from step 20 on (1 of 2 steps)"
    parts = "; ".join(["both have loss NaN at step 20", *(f"{side}'s loss was {nan}" for side in "AB")])
    assert TwoLosses(lost, lost, 3.5e-4, 0.0).headlines() == {"verdict": parts}


def noisy(mean: float, seed: int, shared: int = 0) -> Losses:
    """200 steps with noise of 0.15: of the batches, which runs share, and of a run's own."""
    batches, own = random.Random(shared), random.Random(seed)
    return {step: mean + batches.gauss(0, 0.12) + own.gauss(0, 0.09) for step in range(200)}


@pytest.mark.parametrize("seed", range(10))
def test_one_lucky_step_decides_nothing(seed: int) -> None:
    """The lower mean wins, whatever the last step says; and equal means have no winner, but for one in twenty."""
    a, b = noisy(0.42, seed), {**noisy(0.52, 100 + seed), 199: 0.01}
    told = TwoLosses(a, b, 3.5e-4, 0.0).headlines()
    low, high = (sum(own[step] for step in range(150, 200)) / 50 for own in (a, b))
    assert (
        told["verdict"] == f"A is better: mean loss {low:.4f}, {100 * (1 - low / high):.2g}% lower than B's {high:.4f}"
    )
    assert told["apart"].startswith("means over steps 150 to 199; at step 199 A ")
    assert told["apart"].endswith("; losses part at step 0")


@pytest.mark.sweep
def test_runs_that_only_noise_tells_apart_have_no_winner() -> None:
    told = [TwoLosses(noisy(0.42, n), noisy(0.42, 1000 + n), 3.5e-4, 0.0).headlines() for n in range(200)]
    undecided = [one for one in told if one["verdict"].startswith("neither is clearly better: mean loss A ")]
    assert 180 <= len(undecided) < 200 and undecided[0]["verdict"].endswith(", within their spread")
    assert max(len(one["verdict"]) for one in told) <= 80 and "; at step 199 A " in undecided[0]["apart"]

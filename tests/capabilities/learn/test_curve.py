"""Tests on the whole curve of a loss: one that rises, one that is gone at once; and steps that are too small."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any

import pytest

from hookcli.capabilities.learn.judging.causes import fallen_early
from hookcli.capabilities.learn.judging.checks import FrozenBlock, GraphsKept
from hookcli.capabilities.learn.judging.curve import gone_at, growth, rise
from hookcli.capabilities.learn.judging.guessing import margin_of
from hookcli.capabilities.learn.judging.headline import still as still_weights
from hookcli.capabilities.learn.judging.loss_checks import LossRises, NoBetterThanGuessing, OneLabel
from hookcli.capabilities.learn.lines import Learning, Untrained
from hookcli.checks.base import Check
from hookcli.checks.measurements import Measurements
from hookcli.table.losses import LossCourse

LN_10 = math.log(10)


def noisy(curve: Callable[[float], float], steps: int = 200, noise: float = 0.2, seed: int = 0) -> list[float]:
    """The losses at so many points from 0 to 1."""
    drawn = random.Random(seed)
    return [curve(step / steps) + drawn.gauss(0, noise) for step in range(steps)]


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_that_rises_has_a_trend(seed: int) -> None:
    found = rise(noisy(lambda t: 2 + t, seed=seed))
    assert found and found.before == pytest.approx(2.06, abs=0.2) and found.after == pytest.approx(2.94, abs=0.2)


@pytest.mark.parametrize(
    "curve",
    [
        lambda t: 2.0,
        lambda t: 2 - t,
        lambda t: 2 + 5 * t if t < 0.1 else 2.5 - t,  # a warm-up
        lambda t: 2 + 0.5 * math.sin(20 * t),
        lambda t: 1.0 if t < 0.9 else 3.0,  # new data, late
        lambda t: 2 + 0.1 * t,  # too little to say
    ],
)
def test_other_curves_have_none(curve: Callable[[float], float]) -> None:
    assert not any(rise(noisy(curve, seed=seed)) for seed in range(20))


def test_few_losses_have_none() -> None:
    assert rise([float(step) for step in range(1, 64)]) is None and rise([float(step) for step in range(1, 65)])


def test_a_loss_that_is_gone_at_once() -> None:
    assert gone_at([2.3, 0.4, 0.02, 0.01, *[0.001] * 60], LN_10) == 2
    assert gone_at([0.01] * 60, LN_10) is None  # a model that was trained before
    assert gone_at([2.3 * 0.9**step for step in range(100)], LN_10) is None  # it learns
    assert gone_at([2.3, 0.01, *[2.0] * 60], LN_10) is None  # it comes back


def scheduled(curve: Callable[[float], float], rate: Callable[[float], float], **changed: Any) -> str:
    """The words on a run of 400 steps with these losses at points from 0 to 1, and these learning rates."""
    line, losses = Learning("Net", 0, scaled=1.0), noisy(curve, 400, noise=0.1)
    lines = [replace(line, step=step, rate=rate(step / 400), reach=rate(step / 400)) for step in range(0, 400, 10)]
    return fallen_early([replace(one, **changed) for one in lines], dict(enumerate(losses)))


def drops(t: float) -> float:
    """A learning rate of 0.1, and of 1e-4 after a fifth of the run."""
    return 0.1 if t < 0.2 else 1e-4


def stops(t: float) -> float:
    """A loss that falls as long as that rate is 0.1."""
    return 3 - 5 * min(t, 0.2)


def test_a_learning_rate_that_falls_while_the_loss_does() -> None:
    text = scheduled(stops, drops)
    assert text.startswith(
        "the learning rate had fallen to 0.0001 by step 80, from 0.1, and the loss, which has fallen"
    )
    assert "falls no further since" in text and "step the scheduler once per epoch" in text


@pytest.mark.parametrize(
    ("curve", "rate", "changed"),
    [
        (stops, lambda t: 0.1, {}),
        (lambda t: 3 - 2 * t, drops, {}),  # it falls on
        (lambda t: 2 + math.exp(-60 * t), drops, {}),  # near its floor before the rate fell
        (lambda t: 0.05 + max(3 - 15 * t, 0.0), drops, {}),  # next to nothing is left
        (lambda t: 3 - min(t, 0.9), lambda t: 0.1 if t < 0.9 else 1e-4, {}),  # the end of a schedule
        (lambda t: 3 - min(t, 0.99), lambda t: 0.05 * (1 + math.cos(math.pi * t)), {}),  # a cosine
        (stops, lambda t: 0.1 if t < 0.2 or t > 0.8 else 1e-4, {}),  # which rises again
        (stops, lambda t: 0.1 if t < 0.2 else 1e-3, {}),  # a hundredth, in two steps
        (lambda t: 3.0, drops, {}),  # it has not fallen at all
        (stops, drops, {"reach": 0.1}),  # other groups keep their rates
        (stops, drops, {"alone": False}),
        (stops, drops, {"scaled": None}),  # another kind of loss
    ],
)
def test_other_learning_rates_are_not_named(curve: Any, rate: Any, changed: Mapping[str, Any]) -> None:
    assert not scheduled(curve, rate, **changed)


def said(check: type[Check], losses: Sequence[float], *lines: Learning, **more: Sequence[Untrained]) -> str:
    by_step = dict(enumerate(losses))
    kinds: Mapping[str, Sequence[object]] = {Learning.kind: lines, Untrained.kind: more.get("untrained", ())}
    measured = Measurements(losses=LossCourse.of(by_step), every_loss=by_step, lines=kinds)
    return "".join(getattr(one, "message", "") for one in check().judge(measured))


CHOICE = Learning("Net", 0, classes=10, items=64)


def test_only_a_cross_entropy_is_accused_of_rising() -> None:
    losses = noisy(lambda t: 2 + t)
    assert said(LossRises, losses, CHOICE).startswith("the loss rises over the whole run, from 2.0")
    assert not said(LossRises, losses, Learning("Net", 0)) and not said(LossRises, noisy(lambda t: 2 - t), CHOICE)


def test_a_loss_that_is_gone_as_all_labels_are_one() -> None:
    losses, last = [2.3, 0.4, *[0.001] * 60], replace(CHOICE, step=60, one_label=5)
    expected = "all labels are one of the 10 classes in each of 5 recorded steps"
    assert said(OneLabel, losses, CHOICE, last) == f"{expected}: the loss fell from 2.300 to 0.001000 by step 2"
    assert not said(OneLabel, losses, CHOICE, replace(last, one_label=0))  # an easy task
    assert not said(OneLabel, [2.3] * 60, CHOICE, last)  # the right choice is always the first
    assert not said(OneLabel, losses, Learning("Net", 0), replace(last, classes=0))


def squared(spread: float | None, number: int = 5) -> list[Learning]:
    return [Learning("Net", step, spread=spread) for step in range(number)]


def test_a_squared_error_is_compared_with_the_variance_of_the_targets() -> None:
    text = "the last 30 losses have a mean of 2.000, no better than always returning the mean of the targets"
    assert said(NoBetterThanGuessing, [2.0] * 120, *squared(2.0)).startswith(text)
    assert said(NoBetterThanGuessing, [2.0] * 120, *squared(2.05)).startswith(
        text.replace("no better", "hardly better")
    )


@pytest.mark.parametrize(
    ("losses", "spread"),
    [
        ([1.8] * 120, 2.0),
        ([2.0] * 99, 2.0),
        ([2.0] * 120, 0.0),
        ([2.0] * 120, None),
        ([3 - s / 50 for s in range(120)], 2.0),
    ],
)
def test_other_squared_errors_are_not_accused(losses: list[float], spread: float | None) -> None:
    assert not said(NoBetterThanGuessing, losses, *squared(spread))


def test_losses_are_compared_with_the_targets_of_the_same_batches() -> None:
    """Batches in which the mean of all targets leaves the more, the further theirs is from it: 4 in every other one."""
    centers = [2.0 * (step % 2) for step in range(120)]
    lines = [Learning("Net", step, spread=1.0, center=center) for step, center in enumerate(centers)]
    levels = [1 + (center - 1.0) ** 2 for center in centers]
    assert "no better than always returning the mean" in said(NoBetterThanGuessing, levels, *lines)
    assert "(their variance is 2.000)" in said(NoBetterThanGuessing, levels, *lines[::7])
    assert not said(NoBetterThanGuessing, [0.97 * level for level in levels], *lines)  # a weak signal, learned
    assert not said(NoBetterThanGuessing, [0.97 * level for level in levels], *lines[::7])


def test_few_recorded_targets_do_not_tell_a_rare_share() -> None:
    """Two of 64 targets are 1 where 48 of 1,000 are: the loss of guessing is not known to a hundredth."""
    losses = [0.193] * 120  # guessing by a share of 0.048
    lines = [Learning("Net", step, ones=2 / 64, targets=64) for step in range(2)]
    assert not said(NoBetterThanGuessing, losses, *lines)
    assert said(NoBetterThanGuessing, [0.7] * 120, *(replace(line, ones=0.5) for line in lines))


def of_coins(certain: float, believed: float, targets: int, seed: int) -> str:
    """The text on 120 steps, four of them recorded, of targets that are 1 with a probability of 0.5 +- `certain`.

    The model returns the probability 0.5 +- `believed`, on the right side.
    """
    drawn, losses, lines = random.Random(seed), [], []
    for step in range(120):
        sides = [drawn.choice((-1, 1)) for _ in range(targets)]
        right = [drawn.random() < 0.5 + certain for _ in sides]  # as often as the likelier target comes
        losses.append(-sum(math.log(0.5 + believed if one else 0.5 - believed) for one in right) / targets)
        if step in (0, 60, 80, 100):
            ones = [(side > 0) is one for side, one in zip(sides, right, strict=True)]
            lines.append(Learning("Net", step, ones=sum(ones) / targets, targets=targets))
    return said(NoBetterThanGuessing, losses, *lines)


def test_a_model_that_learns_what_few_targets_hardly_tell_is_not_accused() -> None:
    """It knows a twentieth of the entropy, less than the noise of the targets in the recorded steps."""
    assert not any(of_coins(0.16, 0.16, 20, seed) for seed in range(50))
    assert all(of_coins(0.0, 0.0, 100, seed) for seed in range(50))  # it returns one number
    assert all(of_coins(0.0, 0.3, 100, seed) for seed in range(50))  # it learns noise


@pytest.mark.parametrize(("number", "bound"), [(3, 4.303), (4, 3.182), (6, 2.571), (11, 2.228), (31, 2.042)])
def test_the_margin_is_student_s(number: int, bound: float) -> None:
    """Of these degrees of freedom, of which there is one less, by published tables; spikes count as twice the level."""
    differences = [0.01 * (step % 3) for step in range(number)]
    expected = bound * stdev(differences) / math.sqrt(number)
    assert margin_of(differences, 1.0) == pytest.approx(expected, rel=0.02)
    assert margin_of([*differences, 1e9], 1.0) == margin_of([*differences, 1.0], 1.0)


def test_of_several_frozen_blocks_one_is_named() -> None:
    for number, others in ((1, ""), (3, ", as are 2 more")):
        line = Untrained("Net", 0, "frozen", ["blocks.1"], number, "between blocks.0 and blocks.2")
        expected = "blocks.1 is frozen (requires_grad=False), between blocks.0 and blocks.2, which are trained"
        assert said(FrozenBlock, [1.0] * 5, untrained=[line]) == expected + others


def test_outputs_and_targets_that_were_broadcast_are_the_cause() -> None:
    lines = [Learning("Net", step, spread=2.0, broadcast="64x64") for step in range(5)]
    assert said(NoBetterThanGuessing, [2.0] * 120, *lines).startswith(
        "each output is compared with each target: both were broadcast to 64x64; the last"
    )


@pytest.mark.parametrize(("reach", "too_small"), [(0.001, True), (0.012, False), (0.1, False), (None, False)])
def test_steps_are_too_small_if_no_way_down_is_that_long(reach: float | None, too_small: bool) -> None:
    line = Learning("Net", 0, classes=10, items=64, reach=reach, rate=0.0005)
    text = said(NoBetterThanGuessing, [2.4] * 60, line)
    expected = (
        "the steps are too small (learning rate 0.0005): 60 updates this small can lower the loss by only about 0.06; "
    )
    assert text.startswith(expected) is too_small and "the last 15 losses have a mean of 2.400" in text
    line_of_mode = Untrained("Net", 0, "eval", ["norm"], 1, "BatchNorm1d")
    assert "too small" not in said(NoBetterThanGuessing, [2.4] * 60, line, untrained=[line_of_mode])


@pytest.mark.parametrize(("rates", "fallen"), [([0.05, 1e-6, 1e-7, 1e-9], True), ([0.05, 0.04, 0.02, 1e-9], False)])
def test_a_schedule_that_ends_early_is_named_and_one_that_ends_with_the_run_is_not(
    rates: list[float], fallen: bool
) -> None:
    lines = [Learning("Net", 15 * n, classes=10, items=64, reach=0.001, rate=rate) for n, rate in enumerate(rates)]
    text = said(NoBetterThanGuessing, [2.4] * 60, *lines)
    assert text.startswith("the learning rate has fallen to 1e-09 by step 45, from 0.05; ") is fallen
    assert ("the steps are too small (learning rate 0.05, in the end 1e-09)" in text) is not fallen


@pytest.mark.parametrize(("reach", "fallen"), [(0.01, True), (0.1, True), (0.5, False)])
def test_recorded_steps_count_for_the_steps_until_the_next(reach: float, fallen: bool) -> None:
    """By hand: 4 of 60 steps at the highest rate, of which 3 are recorded, and the rest at 0.005 of it."""
    steps = {0: 1.0, 1: 1.0, 2: 1.0, 4: 0.005, 30: 0.005}
    lines = [Learning("Net", n, classes=10, items=64, reach=reach * rate, rate=rate) for n, rate in steps.items()]
    text = said(NoBetterThanGuessing, [2.4] * 60, *lines)
    total = reach * (4 + 56 * 0.005)  # of a loss of 2.303
    expected = "the learning rate has fallen to 0.005 by step 30, from 1; "
    assert (total < 0.5 * LN_10) is fallen is text.startswith(expected)


def of_rates(*rates: float, still: int, since: int) -> str:
    """What is said of steps with these learning rates, the last of which have changed nothing."""
    lines = [Learning("Net", step, rate=rate, gradient=0.5) for step, rate in enumerate(rates)]
    lines[-1] = replace(lines[-1], still=still, since=since)
    return "".join(still_weights(lines))


def test_weights_that_are_still_are_said_with_the_reason() -> None:
    text = "the optimizer has changed no weight in 10 recorded steps: the learning rate is 0"
    assert of_rates(*[0.0] * 10, still=10, since=0) == text
    text = "the optimizer has changed no weight in 10 recorded steps: its updates are lost as weights are rounded"
    assert of_rates(*[1e-4] * 10, still=10, since=0) == f"{text} (learning rate 0.0001)"
    text = "the optimizer has changed no weight since step 8: the learning rate has fallen to 1e-19, from 1: "
    text += "step the scheduler once per epoch, or let the rate fall later"
    assert of_rates(*(0.1**step for step in range(20)), still=12, since=8) == text
    assert not [*still_weights([Learning("Net", step, rate=0.1, still=step + 1) for step in range(20)])]  # no gradient


@pytest.mark.parametrize(("steps", "still", "since"), [(20, 0, 0), (200, 9, 191), (20, 2, 0), (20, 8, 12)])
def test_weights_that_move_or_rest_at_the_end_are_not_said(steps: int, still: int, since: int) -> None:
    assert not of_rates(*[0.1] * steps, still=still, since=since)


def test_a_loss_while_the_learning_rate_is_warmed_up_is_not_judged() -> None:
    lines = [replace(CHOICE, step=step, rate=1e-5 * (step + 1)) for step in range(5)]
    assert not said(NoBetterThanGuessing, [2.4] * 60, *lines)
    assert said(NoBetterThanGuessing, [2.4] * 60, *lines, replace(lines[-1], step=5))


@pytest.mark.parametrize("seed", range(5))
def test_the_growth_per_step_is_that_of_most_points(seed: int) -> None:
    drawn = random.Random(seed)
    points = [(step, 1000 + 3 * step + drawn.gauss(0, 2)) for step in range(0, 100, 2)]
    points[30] = (60, 5000.0)  # something else was in use
    assert growth(points) == pytest.approx(3, abs=0.2)
    assert growth(points[:8]) == 0 and growth([(5, 1.0)] * 20) == 0


MIB = 1 << 20


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (lambda step: 500 * MIB + 2 * step * MIB, "memory grows with each step, by about 2 MiB: the graphs"),
        (lambda step: 500 * MIB + step * MIB // 2, "memory grows with each step: the graphs"),
        (lambda step: 0, "memory grows with each step: the graphs"),
    ],
)
def test_kept_graphs_are_said_with_the_bytes_per_step(memory: Callable[[int], int], words: str) -> None:
    lines = [Learning("Net", step, in_use=memory(step), graphs=40, seen=40) for step in range(0, 120, 3)]
    assert said(GraphsKept, [1.0] * 120, *lines).startswith(words)


def test_next_to_no_gradient_is_why_steps_are_too_small() -> None:
    faint = [
        Learning("Net", 5 * n, reach=1e-6, rate=0.01, gradient=1e-7, classes=10 * (not n), items=64) for n in range(12)
    ]
    expected = "the steps are too small (next to no gradient arrives, a norm of 1.000e-07): 60 updates this small"
    assert expected in said(NoBetterThanGuessing, [2.4] * 60, *faint)
    assert "no gradient" not in said(NoBetterThanGuessing, [2.4] * 60, *(replace(one, gradient=0.1) for one in faint))

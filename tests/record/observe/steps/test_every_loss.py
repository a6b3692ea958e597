"""The loss of every step, recorded or not: beside the numbers that the programs themselves computed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from observing import observing
from record.observe.steps.loss_nets import X, loss_of, net
from record.observe.steps.loss_programs import (
    Losses,
    an_optimizer_for_each_part,
    both_losses_before_both_steps,
    by_hand,
    cleared_to_none,
    cleared_to_zero,
    closures,
    gan,
    limited_to_inputs,
    micro_batches,
    plain,
    refused,
    several_roots,
    steps_left_out_by_a_scaler,
    steps_left_out_by_the_program,
)
from support import swept

from hookcli.record.file.record_lines import SKIPPED

PROGRAMS = (
    *(plain, micro_batches, steps_left_out_by_a_scaler, several_roots, limited_to_inputs, refused, closures, gan),
    *(an_optimizer_for_each_part, by_hand, both_losses_before_both_steps),
    *(cleared_to_none, cleared_to_zero, steps_left_out_by_the_program),
)
PLAIN = [(limited_to_inputs, 10**6), (micro_batches, 1), (gan, 1), (by_hand, 10**6)]


@pytest.mark.parametrize(
    ("program", "every"),
    [
        (program, every) if (program, every) in PLAIN else swept(program, every)
        for program in PROGRAMS
        for every in (1, 10**6)
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_it_is_known_whether_a_step_is_recorded_or_not(program: Callable[[], Losses], every: int) -> None:
    with observing(every=every) as seen:
        losses = program()
    assert not seen.errors
    for model, values in losses.items():
        assert list(seen.every_loss[model]) == list(range(len(values)))
        assert list(seen.every_loss[model].values()) == pytest.approx(values, rel=1e-6)


@pytest.mark.sweep
def test_a_loss_that_is_not_finite_is_told_though_no_step_took_it() -> None:
    with observing(every=10**6) as seen:
        steps_left_out_by_the_program()
    assert seen.skipped == [("Sequential", 2)]
    assert [(one.step, one.nan, one.cause) for one in seen.non_finites] == [(2, 1, SKIPPED)]


@pytest.mark.sweep
def test_gradients_that_overflow_under_a_scaler_are_no_fault_of_the_loss() -> None:
    with observing(every=10**6) as seen:
        steps_left_out_by_a_scaler()
    assert not (seen.skipped or seen.non_finites)


@pytest.mark.sweep
def test_the_loss_of_a_program_that_skips_all_its_steps_is_not_finite() -> None:
    with observing(every=10**6) as seen:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (loss_of(model, X) * math.nan).backward()
    assert [*seen.every_loss] == ["Sequential"] and math.isnan(seen.every_loss["Sequential"][0] or 0.0)
    assert [(one.step, one.nan) for one in seen.non_finites] == [(0, 1)]


def test_the_loss_of_a_run_whose_last_steps_were_all_left_out_is_not_finite() -> None:
    def program() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(6):
            optimizer.zero_grad()
            loss = loss_of(model, X) * (math.nan if number > 2 else 1.0)
            loss.backward()
            if loss.isfinite():
                optimizer.step()

    with observing(every=10**6) as seen:
        program()
    assert [math.isfinite(loss) for loss in seen.every_loss["Sequential"].values()] == [True] * 3 + [False]
    assert [(one.step, one.what, one.nan) for one in seen.non_finites] == [(3, "loss", 1)]


@pytest.mark.sweep
@pytest.mark.parametrize(("first_bad", "found"), [(None, [(2, "loss", 1, 0)]), ("report", [(2, "loss", 1, 0)])])
def test_the_first_one_that_is_not_finite_is_told_once(first_bad: str | None, found: list[object]) -> None:
    def program() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for step in range(5):
            (loss_of(model, X) + {2: math.nan, 4: math.inf}.get(step, 0.0)).backward()
            optimizer.step()

    with observing(every=10**6, first_bad=first_bad) as seen:
        program()
    assert [(one.step, one.what, one.nan, one.inf) for one in seen.non_finites] == found
    values = seen.every_loss["Sequential"]
    assert [step for step, loss in values.items() if not math.isfinite(loss)] == [2, 4] and len(values) == 5

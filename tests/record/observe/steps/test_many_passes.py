"""Steps of more passes than are observed, and of fewer than usual."""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap

import pytest
import torch
from observing import observed, observing, report
from record.observe.steps.loss_nets import X, loss_of, net
from support import each_once, swept
from torch import Tensor, nn

from hookcli.record.observe import passes
from hookcli.reporters.step_lines import before_clipping
from hookcli.table.losses import LossCourse

FORWARDS = 16
MANY = FORWARDS + 6


def micro_batches(losses: list[float], scaled: bool = False) -> nn.Module:
    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        total = 0.0
        optimizer.zero_grad()
        for number in range(MANY):
            loss = loss_of(model, X[number % 12 :]) / MANY
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(optimizer)
        scaler.update()
        losses.append(total)
    return model


def scaled_micro_batches(losses: list[float]) -> nn.Module:
    return micro_batches(losses, scaled=True)


def closure_evaluations(losses: list[float]) -> nn.Module:
    """Each one clears the gradients of the one before: the last one's loss is the step's."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        seen: list[float] = []

        def closure(seen: list[float] = seen) -> Tensor:
            for number in range(MANY):
                optimizer.zero_grad()
                loss = loss_of(model, X) * (1 + number)
                loss.backward()
            seen.append(loss.item())
            return loss

        optimizer.step(closure)
        losses += seen
    return model


def one_pass_for_many_forwards(losses: list[float]) -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        loss = torch.stack([loss_of(model, X[number % 12 :]) for number in range(MANY)]).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model


@pytest.mark.sweep
@pytest.mark.parametrize(
    "program", [swept(micro_batches), scaled_micro_batches, swept(closure_evaluations), one_pass_for_many_forwards]
)
def test_every_pass_counts_though_not_every_forward_is_observed(
    program: Callable[[list[float]], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the gradient before clipping is the one that all of them left: nothing is clipped here."""
    monkeypatch.setattr(passes, "MOST_FORWARDS", FORWARDS)
    seen = observed(lambda: program([]))
    program(losses := [])
    assert [step.loss for step in seen.recorded] == pytest.approx(losses, rel=1e-6)
    assert [*seen.every_loss["Sequential"].values()] == pytest.approx(losses, rel=1e-6)
    for step in seen.recorded:
        assert step.observed_forwards == FORWARDS < step.forwards
        (group,) = report(step, "optimizer").rows
        assert group["unclipped_grad"] == pytest.approx(group["param_grad"], rel=1e-5)


def test_only_a_gradient_that_became_smaller_was_clipped() -> None:
    assert before_clipping({"unclipped_grad": 2.0, "param_grad": 1.0}) == " (2.000 before clipping)"
    assert before_clipping({"unclipped_grad": 1.0, "param_grad": 2.0}) == " (1.000 as backward left it)"
    assert before_clipping({"unclipped_grad": 1.0, "param_grad": 1.0}) == ""


def accumulate(sizes: list[int]) -> list[float]:
    """Steps of so many micro-batches, each of which counts as a fourth of a batch."""
    model, losses = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for size in sizes:
        parts = [loss_of(model, X) / 4 for _ in range(size)]
        for part in parts:
            part.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(part.item() for part in parts))
    return losses


@pytest.mark.parametrize(
    ("sizes", "short", "last", "every"),
    each_once(
        starmap(
            pytest.param,
            [
                ([4, 4, 2], [2], 1),  # the remainder of an epoch
                ([4, 2, 4, 2], [1, 3], 2),
                ([4, 4, 2, 2], [2], 3),  # fewer from then on
                ([1, 1, 1], [], 2),
                ([1, 2, 4], [], 2),
            ],
        ),
        [1, 10**6],
    ),
)
def test_a_step_of_fewer_passes_is_no_last_loss(sizes: list[int], short: list[int], last: int, every: int) -> None:
    with observing(every=every) as seen:
        losses = accumulate(sizes)
    assert sorted(seen.short) == short
    course = LossCourse.of(dict(enumerate(losses)), seen.short)
    assert course.last == pytest.approx(losses[last], rel=1e-6)
    notes = [note for note in seen.ran["Sequential"].notes if "fewer backward passes" in note]
    assert [note.startswith(f"step {short[-1]}") for note in notes] == [True] * bool(short)


@pytest.mark.parametrize(
    ("rows", "compares", "said", "every"),
    each_once(
        starmap(
            pytest.param,
            [
                ([8] * 5 + [2], True, True),
                ([8, 8, 2, 8, 8, 2], True, True),
                ([8] * 6, True, False),
                ([5, 7, 8, 6, 4, 2], True, False),  # of any size
                ([8] * 5 + [2], False, False),  # a loss that does not depend on it
            ],
        ),
        [1, 10**6],
    ),
)
def test_a_last_loss_of_fewer_rows_is_marked_if_it_differs(
    rows: list[int], compares: bool, said: bool, every: int
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with observing(every=every) as seen:
        for size in rows:
            y = model(torch.ones(size, 4))
            (y.mean() * 0 + (size if compares else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    notes = [note for note in seen.ran["Linear"].notes if "rows" in note]
    assert notes == ["step 5, whose loss is the last, had a batch of 2 rows instead of 8"] * said

"""The level of guessing of losses that are sums, or means of several passes: the loss of the best constant output."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.learn.test_misused import all_faults, net
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.guessing import level_of, times_of
from hookcli.capabilities.learn.lines import Learning
from hookcli.capabilities.learn.losses.loss_facts import LossFacts

CLASSES, ROWS = 5, 8
LABELS = torch.tensor([0, 1, 2, -100, 4, 4, -100, 3])
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 4.0, 0.25])
NUMBERS = torch.randn(24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Reduce = Callable[[Callable[..., Tensor]], Tensor]
"""A loss of `one(reduction=...)`."""

REDUCTIONS: list[Reduce] = [
    lambda one: one(reduction="mean"),
    lambda one: one(reduction="sum"),
    lambda one: one(reduction="sum") / 8,
    lambda one: 0.25 * one(reduction="mean"),
    lambda one: one(reduction="none").mean(),
    lambda one: one(reduction="none").sum(),
    lambda one: one(reduction="none").view(2, -1).mean() / 2,
    lambda one: one(reduction="none").view(2, -1).sum(1).mean(),
    lambda one: one(reduction="none").view(2, -1).mean(0).sum(),
    lambda one: one(reduction="none").view(2, -1).mean(1).mean() / 3,
]


def facts_of(*losses: Tensor) -> LossFacts:
    facts = LossFacts()
    for loss in losses:
        facts.add([loss])
    return facts


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_cross_entropy_at_scores_that_are_all_the_same(reduce: Reduce, weights: Tensor | None) -> None:
    scores = torch.zeros(ROWS, CLASSES, requires_grad=True)
    losses = [reduce(lambda y=y, **how: F.cross_entropy(scores, y, weights, **how)) for y in (LABELS, LABELS.flip(0))]
    for number in (1, 2):
        facts = facts_of(*losses[:number])
        level = facts.level(number, facts.label_range())["scaled"] * math.log(CLASSES)
        assert level == pytest.approx(sum(loss.item() for loss in losses[:number]), rel=1e-5)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("columns", [(), (1,)])
def test_a_squared_error_at_the_mean_of_the_targets(reduce: Reduce, passes: int, columns: tuple[int, ...]) -> None:
    outputs = NUMBERS.mean().expand(24 // passes, *columns).clone().requires_grad_()
    parts = [part.view(-1, *columns) for part in NUMBERS.chunk(passes)]
    losses = [reduce(lambda y=y, **how: F.mse_loss(outputs, y, **how)) for y in parts]
    fields = facts_of(*losses).fields(passes, targets_of_models=False, several=False)
    expected = math.fsum(loss.item() for loss in losses)
    assert fields["times"] * fields["spread"] == pytest.approx(expected, rel=1e-5)
    assert fields["returned"] == pytest.approx(fields["expected"]) == pytest.approx(NUMBERS.mean().item())


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("logits", [True, False])
def test_a_binary_cross_entropy_at_the_share_of_ones(reduce: Reduce, passes: int, logits: bool) -> None:
    targets = (NUMBERS > 0.3).double()
    share = targets.mean()
    constant = (share / (1 - share)).log() if logits else share
    outputs = constant.expand(24 // passes).clone().requires_grad_()
    of = F.binary_cross_entropy_with_logits if logits else F.binary_cross_entropy
    losses = [reduce(lambda y=y, **how: of(outputs, y, **how)) for y in targets.chunk(passes)]
    fields = facts_of(*losses).fields(passes, targets_of_models=False, several=False)
    ones = fields["ones"]
    level = -fields["times"] * (ones * math.log(ones) + (1 - ones) * math.log(1 - ones))
    assert level == pytest.approx(math.fsum(loss.item() for loss in losses), rel=1e-5)
    assert fields["targets"] == 24


@pytest.mark.parametrize("times", [1.0, 0.25])
@pytest.mark.parametrize("more", [0, 1e-6, 0.5])
def test_the_root_of_a_squared_error_at_the_mean_of_the_targets(times: float, more: float) -> None:
    outputs = NUMBERS.mean().expand(24).clone().requires_grad_()
    loss = times * (F.mse_loss(outputs, NUMBERS) + more).sqrt()
    fields = facts_of(loss).fields(1, targets_of_models=False, several=False)
    known = ("times", "spread", "center", "rooted")
    line = Learning("Net", 0, **{name: fields[name] for name in known})
    assert level_of(line, NUMBERS.mean().item()) == pytest.approx(loss.item())


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, y: F.mse_loss(outputs, y, reduction="sum").sqrt(),
        lambda outputs, y: (F.mse_loss(outputs, y) + outputs.mean()).sqrt(),
        lambda outputs, y: F.l1_loss(outputs, y).sqrt(),
        lambda outputs, y: F.mse_loss(outputs, y, reduction="none").sqrt().mean(),
    ],
)
def test_other_roots_have_no_known_level(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    facts = facts_of(loss(torch.zeros(24, requires_grad=True), NUMBERS.float()))
    assert "spread" not in facts.fields(1, targets_of_models=False, several=False)


def test_passes_of_other_kinds_have_no_known_level() -> None:
    outputs = torch.zeros(8, requires_grad=True)
    squares, ones = (
        F.mse_loss(outputs, NUMBERS[:8].float()),
        F.binary_cross_entropy_with_logits(outputs, 1.0 * torch.ones(8)),
    )
    for losses, passes in (((squares, ones), 2), ((squares,), 2), ((squares, squares), 1), ((squares + ones,), 1)):
        fields = facts_of(*losses).fields(passes, targets_of_models=False, several=False)
        assert not {"spread", "ones", "times"} & fields.keys()
    weighted = F.binary_cross_entropy_with_logits(outputs, torch.ones(8), torch.ones(8), reduction="sum")
    assert "ones" not in facts_of(weighted).fields(1, targets_of_models=False, several=False)


def test_earlier_records_have_means() -> None:
    assert times_of(Learning("Net", 0, spread=1.0)) == 1


def train(
    loss_of: Callable[[Tensor, Tensor], Tensor], lr: float, passes: int = 1, *, random: bool = False
) -> nn.Module:
    """A training of 100 steps, each of 32 rows in so many passes."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(100):
        optimizer.zero_grad()
        for x in torch.randn(32, 6).chunk(passes):
            y = torch.randint(3, (len(x),)) if random else x[:, :3].argmax(1)
            loss_of(model(x), y).backward()
        optimizer.step()
    return model


def squares(outputs: Tensor, y: Tensor, **how: Any) -> Tensor:
    return F.mse_loss(outputs[:, 0], y.float(), **how)


def binary(outputs: Tensor, y: Tensor, **how: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs[:, 0], (y == 0).float(), **how)


SMALL = "the steps are too small (learning rate 1e-07)"
CASES = [
    (lambda o, y: F.cross_entropy(o, y, reduction="sum"), 1, "(32 ln 3 = 35.16)"),
    (lambda o, y: squares(o, y, reduction="sum"), 1, "(32 times their variance is "),
    (lambda o, y: squares(o, y) / 4, 4, "(their variance is "),
    (lambda o, y: squares(o, y), 4, "(4 times their variance is "),
    (lambda o, y: binary(o, y, reduction="sum"), 1, "% of the targets are 1)"),
    (lambda o, y: binary(o, y) / 4, 4, "% of the targets are 1)"),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("loss_of", "passes", "level"), [CASES[0], *(swept(*case) for case in CASES[1:])])
def test_steps_that_are_too_small_and_ones_that_are_not(
    loss_of: Callable[[Tensor, Tensor], Tensor], passes: int, level: str
) -> None:
    (text,) = all_faults(lambda: train(loss_of, 1e-7, passes))
    assert level in text and text.startswith(SMALL)
    factor = loss_of(torch.ones(32, 3, requires_grad=True), torch.arange(32) % 3).item()
    assert not all_faults(lambda: train(loss_of, 0.3 / factor, passes))

"""The level of guessing where classes are not balanced: how often each of them is a label."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from capabilities.learn.test_parts import measured
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.checks import learned
from hookcli.capabilities.learn.judging.guessing import guess_of
from hookcli.capabilities.learn.judging.headline import faults
from hookcli.capabilities.learn.judging.unfallen import unfallen
from hookcli.capabilities.learn.lines import Learning
from hookcli.capabilities.learn.losses.class_shares import ClassShares
from hookcli.capabilities.learn.losses.loss_facts import LossFacts

STEPS, EVERY = 200, 5  # of which every fifth is recorded
RARE = 0.05
LABELS = torch.tensor([0, 0, 0, 1, 0, 2, 0, -100])


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2.0, 5.0, 1.0])])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_of_naming_the_shares(weights: Tensor | None, reduction: str) -> None:
    each = torch.ones(4) if weights is None else weights
    counts = torch.tensor([5.0, 1.0, 1.0, 0.0]) * each
    scores = (counts / counts.sum()).log().clamp(min=-30).expand(8, 4).clone().requires_grad_()
    facts = LossFacts()
    facts.add([F.cross_entropy(scores, LABELS, weights, reduction=reduction)])
    fields = ClassShares().fields(facts.counts())
    assert fields["guessed"] == pytest.approx(F.cross_entropy(scores, LABELS, weights).item(), rel=1e-5)
    assert fields["common"] == 0
    assert fields["common_share"] == pytest.approx(float(counts[0] / counts.sum()))


def test_the_shares_are_those_of_all_recorded_steps() -> None:
    shares, steps = ClassShares(), [torch.tensor([8.0, 0.0]), torch.tensor([4.0, 4.0])]
    assert [shares.fields([counts])["guessed"] for counts in steps] == [
        0.0,
        pytest.approx(F.cross_entropy(torch.tensor([0.75, 0.25]).log(), torch.tensor([0.5, 0.5])).item()),
    ]
    assert shares.fields([torch.ones(3)]) == {}  # another head by now


@pytest.mark.parametrize(
    "loss",
    [
        lambda scores, y: F.cross_entropy(scores, y, label_smoothing=0.1),
        lambda scores, y: F.cross_entropy(scores, y) + F.cross_entropy(scores, 1 - y.clamp(max=1)),  # two tasks
        lambda scores, y: F.cross_entropy(scores.repeat(1, 50), y),
        lambda scores, y: F.cross_entropy(scores, F.one_hot(y, 4).float()),
        lambda scores, y: F.mse_loss(scores, F.one_hot(y, 4).float()),
    ],
)
def test_losses_whose_shares_are_not_known(loss: object) -> None:
    facts = LossFacts()
    facts.add([loss(torch.zeros(8, 4, requires_grad=True), LABELS.clamp(min=0))])  # type: ignore[operator]
    assert not facts.counts()


def train(*, told: bool, weights: Tensor | None = None, balanced: bool = False) -> nn.Module:
    """One row in twenty is positive. Without `told` the inputs tell nothing of the label."""
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(STEPS):
        y = (torch.rand(128) < (0.5 if balanced else RARE)).long()
        x = torch.randn(128, 4)
        if told:
            x[:, 0] += 2 * y
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, weights).backward()
        optimizer.step()
    return model


HEAVY = torch.tensor([1.0, 19.0])


@pytest.mark.parametrize(
    ("how", "level"),
    [
        ({"told": False}, "as 95% of the labels are class 0)"),
        ({"told": True}, ""),
        swept({"told": False, "weights": HEAVY}, "guessing among 2 classes (ln 2 = 0.6931)"),
        swept({"told": True, "weights": HEAVY}, ""),
        swept({"told": False, "balanced": True}, "guessing among 2 classes (ln 2 = 0.6931)"),
        swept({"told": True, "balanced": True}, ""),
    ],
)
def test_rare_positives_that_are_never_predicted(how: dict[str, Any], level: str) -> None:
    """It is a remark alone: every model learns first how rare they are."""
    run = measured(observed(lambda: train(**how), every=EVERY))
    guess = guess_of(learned(run.lines), run.every_loss)
    assert level in guess.words if guess else not level
    remark = (
        f"{level}, and hookcli sees no cause: a fault that it does not know, or a task with little to learn"
        if level
        else ""
    )
    assert unfallen(run).endswith(remark) and bool(unfallen(run)) is bool(level)
    assert bool(list(faults(run))) is ("ln 2" in level)


@pytest.mark.parametrize("share", [0.95, 0.99, 1.0])
def test_next_to_one_class_alone_has_no_level(share: float) -> None:
    """When a model ranks candidates, the first one may always be right."""
    of_step = {"classes": 2, "items": 64, "guessed": 0.05, "scaled": 1.0, "common_share": share}
    lines = [Learning("Net", step, **of_step) for step in range(60)]
    guess = guess_of(lines, dict.fromkeys(range(60), 0.06))
    assert bool(guess) is (share < 0.98)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_counts_for_nothing(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        facts = LossFacts()
        facts.add([F.cross_entropy(torch.zeros(8, 4, requires_grad=True), LABELS)])
        assert facts.counts()[0].tolist() == [5, 1, 1, 0]
    finally:
        torch.set_default_dtype(before)

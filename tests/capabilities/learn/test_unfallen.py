"""The remark on a loss that has not fallen, where no cause is named: what a user sees where nothing is judged."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from commands.test_run_nan import run
from support import swept

from hookcli.capabilities.learn.judging.headline import on_order
from hookcli.capabilities.learn.judging.unfallen import falls, unfallen
from hookcli.capabilities.learn.lines import Learning, Untrained
from hookcli.checks.measurements import Measurements
from hookcli.table.losses import LossCourse

OTHER, CHOICE = Learning("Net", 0), Learning("Net", 0, classes=10, items=64, scaled=1.0)
SQUARE, BINARY = Learning("Net", 0, spread=2.0), Learning("Net", 0, ones=0.5, targets=64)
UNKNOWN = "what guessing gives is not known for this loss, so hookcli can't tell whether it should fall"


def noisy(levels: Sequence[float], noise: float = 0.1) -> list[float]:
    drawn = random.Random(0)
    return [level + drawn.gauss(0, noise) for level in levels]


def said(losses: Sequence[float], line: Learning) -> str:
    by_step = dict(enumerate(losses))
    lines = {Learning.kind: [line], Untrained.kind: []}
    return unfallen(Measurements(losses=LossCourse.of(by_step), every_loss=by_step, lines=lines))


@pytest.mark.parametrize("steps", [16, 40, 400])
def test_losses_that_fall_and_others(steps: int) -> None:
    assert not falls(noisy([1.0] * steps))
    assert not falls(noisy([1 + step / steps for step in range(steps)]))
    assert falls(noisy([2 - step / steps for step in range(steps)]))
    assert falls(noisy([3.0, 2.5] + [1.0] * (steps - 2)))  # at once, and no more
    assert falls(noisy([1.0] * 15))  # too few to tell


def test_why_it_is_not_judged() -> None:
    flat = [1.0, 1.2] * 100
    assert said(flat, OTHER) == (
        f"the loss has not fallen: 1.100 → 1.100 (means of the first and last 50 of 200 steps); {UNKNOWN}"
    )
    assert said(noisy([1.0] * 40), CHOICE).endswith("10 of 40 steps); hookcli looks for a cause after 50 steps")
    assert said(noisy([1.0] * 60), SQUARE).endswith("15 of 60 steps); hookcli looks for a cause after 100 steps")
    near = said(noisy([0.99 * math.log(2)] * 200, 0.01), BINARY)
    assert near.startswith("the last 50 losses have a mean of 0.68")
    assert near.endswith("and hookcli sees no cause: a fault that it does not know, or a task with little to learn")
    slightly = said([1.101, 1.199] + [1.1, 1.2] * 98 + [1.099, 1.2], OTHER)
    assert slightly.startswith("the loss has hardly fallen: 1.150 → 1.150")


@pytest.mark.parametrize(
    ("losses", "line"),
    [
        (noisy([1.0] * 15), OTHER),
        (noisy([2 - step / 200 for step in range(200)]), OTHER),
        (noisy([0.1] * 200, 0.01), CHOICE),  # far below guessing
        (noisy([1.0] * 200), Learning("Net", 0, alone=False)),  # an adversary's
        ([*noisy([1.0] * 100), math.nan], OTHER),
        (noisy([-0.2] * 200, 2.0), OTHER),  # that of a policy gradient
    ],
)
def test_nothing_is_said_of_others(losses: list[float], line: Learning) -> None:
    assert not said(losses, line)


TRAIN = """
import sys, torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 4)
nn.init.zeros_(net.weight)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
weights = torch.randn(8, 4)
for step in range(60):
    x = torch.randn(32, 8)
    y = x @ weights if sys.argv[1] == "right" else torch.randn(32, 4)
    loss = (net(x) - y).abs().mean() + (net(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("fault", ["wrong", swept("right")])
def test_the_remark_stands_below_the_tables_and_leads_on(fault: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    ran = run(tmp_path, "run", "-o", "a.run.jsonl", "train.py", fault)
    text = " ".join(ran.stderr.split())
    recording, first, *lines = ran.stderr.splitlines()
    assert recording.startswith("hookcli: recording in ")
    assert first.startswith("hookcli: train.py: 60 steps")
    last = [line for line in lines if line][-1]
    if fault == "right":
        assert "fallen" not in text
        assert last == "Next: hookcli report a.run.jsonl"
        return
    assert "Linear: the loss has" in text and text.index("Linear: the loss has") > text.index("|dw|/|w|")
    assert UNKNOWN in text
    assert last == "Next: hookcli run --trial --probe inputs,activations train.py wrong"
    assert (tmp_path / "a.run.jsonl").exists() and ran.returncode == 0
    shown = run(tmp_path, "show", "a.run.jsonl")
    first, second, *_ = shown.stderr.splitlines()
    assert first.startswith("hookcli: train.py: 60 steps")
    assert second.startswith("hookcli: Linear: the loss has")
    in_json = json.loads(run(tmp_path, "show", "a.run.jsonl", "--over-time", ".", "-f", "json").stdout)
    assert "fallen" not in json.dumps(in_json)


def test_steps_that_are_too_small_are_named_where_the_level_is_unknown() -> None:
    small = replace(OTHER, reach=1e-6, rate=0.01, gradient=1e-7)
    expected = "the steps are too small (next to no gradient arrives, a norm of 1.000e-07): 200 updates this small"
    assert expected in said([1.0, 1.2] * 100, small)
    assert UNKNOWN in said([1.0, 1.2] * 100, replace(small, reach=0.1))


def test_one_remark_for_models_with_the_same() -> None:
    run = Measurements(
        losses=LossCourse(), every_loss={}, lines={Learning.kind: [Learning("Net", 0, ordered=3)], Untrained.kind: []}
    )
    made = [*on_order({"Net": run, "Other": run, "Third": run})]
    (remark,) = made
    assert remark.startswith("Net and 2 more models: the batches come in one order in each of 3 epochs; unless")
